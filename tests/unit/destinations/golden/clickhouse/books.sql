CREATE DATABASE IF NOT EXISTS `waybill`;
CREATE TABLE IF NOT EXISTS `waybill`.`_waybill_loads` (place String, sequence Int64, id String, destination String, number Int64, statement String, token String, record String, done UInt8, at DateTime64(6, 'UTC')) ENGINE = MergeTree ORDER BY (place, sequence) SETTINGS non_replicated_deduplication_window = 10000;
