SELECT COUNT(*) AS "rows" FROM "shop"."orders" AS "t" WHERE EXISTS(SELECT 1 FROM "waybill"."_waybill_work_1_stage" AS "s" WHERE "t"."id" = "s"."id");
