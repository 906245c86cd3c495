CREATE EXTERNAL TABLE IF NOT EXISTS `waybill`.`traces_by_time` (
  `event_id` string,
  `pipeline_id` string,
  `event_name` string,
  `phase` string,
  `outcome` string,
  `error_type` string,
  `host` string,
  `topic` string,
  `kafka_partition` int,
  `kafka_offset` bigint,
  `object_key` string,
  `batch` string,
  `commit_number` bigint,
  `attempt` int,
  `replay_id` string,
  `intake_minute` int,
  `refers_to` string,
  `at` timestamp
)
PARTITIONED BY (`bucket` string, `dt` string, `hour` string)
STORED AS PARQUET
LOCATION 's3://waybill/traces/'
TBLPROPERTIES (
  'projection.enabled' = 'true',
  'projection.bucket.type' = 'integer',
  'projection.bucket.range' = '0,128',
  'projection.bucket.digits' = '3',
  'projection.dt.type' = 'date',
  'projection.dt.format' = 'yyyy-MM-dd',
  'projection.dt.range' = '2026-01-01,NOW+1DAYS',
  'projection.hour.type' = 'integer',
  'projection.hour.range' = '0,23',
  'projection.hour.digits' = '2',
  'storage.location.template' = 's3://waybill/traces/bucket=${bucket}/dt=${dt}/hour=${hour}/'
)
