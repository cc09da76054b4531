"""horovodrun --monitor: a table of the ranks, at the bottom of the terminal or now and then in the log.

From the ranks to the screen: snapshot.py reads what a rank sends, board.py collects it by rank, figures.py
makes rates of it, table.py lines of text, screen.py keeps these below the workers' output, and monitor.py is
what the driver talks to.
"""
