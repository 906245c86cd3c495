CREATE SCHEMA IF NOT EXISTS "shop";
CREATE TABLE IF NOT EXISTS "shop"."lines" ("id" BIGINT NOT NULL, "_waybill_item" BIGINT NOT NULL, "sku" VARCHAR(65535), "_waybill_id" VARCHAR(65535) NOT NULL, "_waybill_source_version" BIGINT NOT NULL, "_waybill_intake_version" BIGINT NOT NULL, "_waybill_loaded_at" TIMESTAMPTZ NOT NULL, PRIMARY KEY ("id", "_waybill_item"));
