#!/bin/sh
# Runs once, when the PostgreSQL volume is new: a role and a database each for Airflow, the tracker
# and the warehouse. Passwords come from the environment and are quoted by psql.
set -eu
for name in airflow tracker warehouse; do
  case "$name" in
    airflow) password=$AIRFLOW_DB_PASSWORD ;;
    tracker) password=$TRACKER_DB_PASSWORD ;;
    warehouse) password=$WAREHOUSE_DB_PASSWORD ;;
  esac
  # Not as an argument: everybody on the machine can read those.
  ROLE_PASSWORD=$password psql --set=ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres \
    --set=name="$name" <<'SQL'
\getenv password ROLE_PASSWORD
CREATE ROLE :"name" LOGIN PASSWORD :'password';
CREATE DATABASE :"name" OWNER :"name";
SQL
done
