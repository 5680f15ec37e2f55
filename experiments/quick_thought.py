r"""Quick-Thought Vectors with alignment and uniformity (Wang & Isola, B.3).

    python run.py data prepare-text BOOKS --out bookcorpus
    python run.py pretrain quick_thought/contrastive --data-dir bookcorpus
    python run.py probe quick_thought_contrastive --data mr cr --data-dir SENTIMENT \
        --protocols quick_thought knn

BOOKS is a folder of texts, one sentence a line or as prose; SENTIMENT holds rt-polarity.pos,
rt-polarity.neg, custrev.pos and custrev.neg.

Settings: B.3, which follows Quick-Thought's code: K = 400 consecutive sentences, Adam with a
constant rate of 0.0005, gradients clipped at norm 0.5, one epoch; bidirectional GRUs of 600 units a
direction, word embeddings of 620 dimensions trained from scratch, 50,001 words. `unnormalized` is
Quick-Thought as it was, without unit norm in training; the others are the rows of Table 4:
`contrastive` that is best on MR, `contrastive_cr` on CR, `align_uniform` on both.

Expected score (Table 11, MR and CR on the validation split): unnormalized 77.23 and 83.07%,
contrastive 77.51 and 82.28%, contrastive_cr 77.69 and 83.86%, align_uniform 73.76 and 80.95%.
Not measured here at this size; docs/text.md and docs/results.md have encoders of eight novels.

Expected time: 52.8 million sentences are 132,000 steps. Estimate: at 23 words a sentence a step of
400 costs 4 GRUs x 9,200 words x (620 + 600) x 1,800 multiplications, forwards and backwards 4.8e11
FLOP: 6.4e16 in all, and as the recurrence has some 130 short products a step, its latency counts
for more: at 30 ms a step, an hour on a GPU.
"""

from hypersphere_jax.configs import ModelConfig, ObjectiveConfig, OptimizerConfig, PretrainConfig

MODEL = ModelConfig("sentence_gru", dim=1200, embedding=620)
OPTIMIZER = OptimizerConfig(
    epochs=1,
    batch_size=400,
    optimizer="adam",
    learning_rate=5e-4,
    scaling="none",
    decay_at=(),
    weight_decay=0.0,
    clip_norm=0.5,
    adam_betas=(0.9, 0.999),
    adam_eps=1e-8,
)


def _contrastive(tau: float) -> ObjectiveConfig:
    return ObjectiveConfig(
        contrastive_weight=1.0, contrastive_tau=tau, align_weight=0.0, uniform_weight=0.0
    )


def _config(variant: str, objective: ObjectiveConfig, model: ModelConfig = MODEL) -> PretrainConfig:
    return PretrainConfig(
        name=f"quick_thought_{variant}",
        data="books",
        **vars(model),
        **vars(objective),
        **vars(OPTIMIZER),
        log_every_steps=100,
    )


CONFIGS = {
    "contrastive": _config("contrastive", _contrastive(0.075)),
    "contrastive_cr": _config("contrastive_cr", _contrastive(0.05)),
    "align_uniform": _config(
        "align_uniform",
        ObjectiveConfig(align_weight=0.9, align_alpha=2, uniform_weight=0.1, uniform_t=5),
    ),
    "unnormalized": _config(
        "unnormalized",
        _contrastive(1.0),
        ModelConfig("sentence_gru", dim=1200, embedding=620, unit_norm=False),
    ),
}
