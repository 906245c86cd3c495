SELECT column_name AS name, data_type AS type, is_nullable = 'NO' AS required FROM `shop`.INFORMATION_SCHEMA.COLUMNS WHERE table_name = 'orders' ORDER BY ordinal_position;
