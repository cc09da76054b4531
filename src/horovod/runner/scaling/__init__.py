"""`horovodrun scaling` measures how a script scales; `horovodrun predict` calculates how it would."""
