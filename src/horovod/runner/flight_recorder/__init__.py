"""`horovodrun flight-recorder DIR`: which rank diverged first and how, from all ranks' dumps."""
