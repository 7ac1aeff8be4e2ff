"""How answers are written: findings, reports, the words for devices and counts, the terminal."""
