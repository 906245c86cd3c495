CREATE SCHEMA IF NOT EXISTS `waybill`;
CREATE TABLE IF NOT EXISTS `waybill`.`_waybill_locks` (`name` STRING NOT NULL, `held` INT64 NOT NULL);
CREATE TABLE IF NOT EXISTS `waybill`.`_waybill_commits` (`destination` STRING NOT NULL, `commit_number` INT64 NOT NULL, `counts` STRING, `parked` STRING, `loaded_at` TIMESTAMP NOT NULL, `batch` STRING);
CREATE TABLE IF NOT EXISTS `waybill`.`_waybill_tombstones` (`table_schema` STRING NOT NULL, `table_name` STRING NOT NULL, `key_hash` STRING NOT NULL, `key` STRING NOT NULL, `_waybill_id` STRING NOT NULL, `_waybill_source_version` INT64 NOT NULL, `_waybill_intake_version` INT64 NOT NULL, `deleted_at` TIMESTAMP NOT NULL);
CREATE TABLE IF NOT EXISTS `waybill`.`_waybill_row_counts` (`table_schema` STRING NOT NULL, `table_name` STRING NOT NULL, `rows` INT64 NOT NULL, `baseline` INT64, `gap` INT64 NOT NULL, `looked_at` TIMESTAMP);
