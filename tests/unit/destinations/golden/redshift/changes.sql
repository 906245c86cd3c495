ALTER TABLE "shop"."orders" ADD COLUMN "new" VARCHAR(65535);
ALTER TABLE "shop"."orders" ADD COLUMN "_waybill_loaded_at" TIMESTAMPTZ;
