"""The connector ``kafka``: topics of others, as JSON or as envelopes of Debezium.

declaration   what a declaration and a connection say
log           topics, their ends, their messages
messages      from a message to a record: JSON
debezium      from a message to a record: an envelope of Debezium
position      the cursor: offsets, and up to where this round goes
connector     pages
"""
