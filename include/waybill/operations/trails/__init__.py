"""Where an event is: questions, and trails as their answers.

question   what may be asked: ids, a primary key; answer: all trails of a question
trail      one event's: its traces in legs (legs), a verdict in words (verdict), and what the
           tracker knows beside them (known); missing: what is said where there is none
queries    questions in the tracker: asked, claimed, answered, cancelled; runner: who works on them
desk       what the web asks for
"""
