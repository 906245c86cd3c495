CREATE SCHEMA IF NOT EXISTS "waybill";
CREATE TABLE IF NOT EXISTS "waybill"."_waybill_locks" ("name" VARCHAR NOT NULL, "held" NUMBER(19, 0) NOT NULL);
CREATE TABLE IF NOT EXISTS "waybill"."_waybill_commits" ("destination" VARCHAR NOT NULL, "commit_number" NUMBER(19, 0) NOT NULL, "counts" VARCHAR, "parked" VARCHAR, "loaded_at" TIMESTAMP_TZ(6) NOT NULL, "batch" VARCHAR);
CREATE TABLE IF NOT EXISTS "waybill"."_waybill_tombstones" ("table_schema" VARCHAR NOT NULL, "table_name" VARCHAR NOT NULL, "key_hash" VARCHAR NOT NULL, "key" VARCHAR NOT NULL, "_waybill_id" VARCHAR NOT NULL, "_waybill_source_version" NUMBER(19, 0) NOT NULL, "_waybill_intake_version" NUMBER(19, 0) NOT NULL, "deleted_at" TIMESTAMP_TZ(6) NOT NULL);
CREATE TABLE IF NOT EXISTS "waybill"."_waybill_row_counts" ("table_schema" VARCHAR NOT NULL, "table_name" VARCHAR NOT NULL, "rows" NUMBER(19, 0) NOT NULL, "baseline" NUMBER(19, 0), "gap" NUMBER(19, 0) NOT NULL, "looked_at" TIMESTAMP_TZ(6));
