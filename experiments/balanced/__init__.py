"""The paper of the balanced contrastive loss: its tables, figures and theorems."""
