CREATE SCHEMA IF NOT EXISTS "shop";
CREATE TABLE IF NOT EXISTS "shop"."lines" ("id" NUMBER(19, 0) NOT NULL, "_waybill_item" NUMBER(19, 0) NOT NULL, "sku" VARCHAR, "_waybill_id" VARCHAR NOT NULL, "_waybill_source_version" NUMBER(19, 0) NOT NULL, "_waybill_intake_version" NUMBER(19, 0) NOT NULL, "_waybill_loaded_at" TIMESTAMP_TZ(6) NOT NULL, PRIMARY KEY ("id", "_waybill_item"));
