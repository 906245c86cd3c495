ALTER TABLE `shop`.`orders` ADD COLUMN IF NOT EXISTS `new` Nullable(String);
ALTER TABLE `shop`.`orders` MODIFY COLUMN `small` Nullable(Int64);
