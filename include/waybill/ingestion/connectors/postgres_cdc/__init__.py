"""The connector ``postgres_cdc``: tables of PostgreSQL and their changes, from its log.

declaration       what a declaration and a connection say
source_database   what has to be so; tables, publication, slot
replication       the stream of a slot, over libpq
pgoutput          its messages
column_values     from a value's text to JSON
snapshot          rows of a table, page by page
changes           from changes to records
log_reader        pages of changes
position          the cursor
connector         all of it
"""
