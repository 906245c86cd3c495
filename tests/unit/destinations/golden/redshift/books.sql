CREATE SCHEMA IF NOT EXISTS "waybill";
CREATE TABLE IF NOT EXISTS "waybill"."_waybill_locks" ("name" VARCHAR(65535) NOT NULL, "held" BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS "waybill"."_waybill_commits" ("destination" VARCHAR(65535) NOT NULL, "commit_number" BIGINT NOT NULL, "counts" VARCHAR(65535), "parked" VARCHAR(65535), "loaded_at" TIMESTAMPTZ NOT NULL, "batch" VARCHAR(65535));
CREATE TABLE IF NOT EXISTS "waybill"."_waybill_tombstones" ("table_schema" VARCHAR(65535) NOT NULL, "table_name" VARCHAR(65535) NOT NULL, "key_hash" VARCHAR(65535) NOT NULL, "key" VARCHAR(65535) NOT NULL, "_waybill_id" VARCHAR(65535) NOT NULL, "_waybill_source_version" BIGINT NOT NULL, "_waybill_intake_version" BIGINT NOT NULL, "deleted_at" TIMESTAMPTZ NOT NULL);
CREATE TABLE IF NOT EXISTS "waybill"."_waybill_row_counts" ("table_schema" VARCHAR(65535) NOT NULL, "table_name" VARCHAR(65535) NOT NULL, "rows" BIGINT NOT NULL, "baseline" BIGINT, "gap" BIGINT NOT NULL, "looked_at" TIMESTAMPTZ);
