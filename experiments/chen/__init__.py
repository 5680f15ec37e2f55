"""Chen, Luo & Li, *Intriguing Properties of Contrastive Losses*: its tables and figures."""
