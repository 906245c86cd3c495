CREATE SCHEMA IF NOT EXISTS `shop`;
CREATE TABLE IF NOT EXISTS `shop`.`lines` (`id` INT64 NOT NULL, `_waybill_item` INT64 NOT NULL, `sku` STRING, `_waybill_id` STRING NOT NULL, `_waybill_source_version` INT64 NOT NULL, `_waybill_intake_version` INT64 NOT NULL, `_waybill_loaded_at` TIMESTAMP NOT NULL, PRIMARY KEY (`id`, `_waybill_item`) NOT ENFORCED);
