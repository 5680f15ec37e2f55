"""Pictures that several reproductions share; the others are drawn beside what they show."""
