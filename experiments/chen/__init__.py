"""Chen, Luo & Li, *Intriguing Properties of Contrastive Losses* (2021), one file per item."""
