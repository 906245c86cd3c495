ALTER TABLE `shop`.`orders` ADD COLUMN `new` STRING;
ALTER TABLE `shop`.`orders` SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true');
ALTER TABLE `shop`.`orders` ALTER COLUMN `small` TYPE BIGINT;
ALTER TABLE `shop`.`orders` ALTER COLUMN `small` DROP NOT NULL;
