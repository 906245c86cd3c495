"""The connector ``kafka``: topics of others: JSON, Avro, Protobuf, and envelopes of Debezium.

declaration      what a declaration and a connection say
log              topics, their ends, their messages
messages         from a message to a record: an object, of JSON
debezium         from a message to a record: an envelope of Debezium
framed_messages  values and keys that say their schema by an id
wire_format      how they say it
schema_registry  where it is looked up
avro, protobuf   from bytes and their schema to what JSON has
position         the cursor: offsets, and up to where this round goes
connector        pages
"""
