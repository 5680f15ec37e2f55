r"""Quick-Thought Vectors with alignment and uniformity (Wang & Isola, B.3).

    python run.py data prepare-text BOOKS --out bookcorpus
    python run.py pretrain quick_thought/contrastive --data-dir bookcorpus
    python run.py probe quick_thought_contrastive --data mr cr --data-dir SENTIMENT \
        --protocols quick_thought knn

BOOKS is a folder of texts, one sentence per line or prose. SENTIMENT contains rt-polarity.pos,
rt-polarity.neg, custrev.pos and custrev.neg.

Settings: B.3, which follows Quick-Thought's code. `unnormalized` is the original Quick-Thought
without unit norm. The others are rows of Table 4: `contrastive` is best on MR, `contrastive_cr` on
CR, `align_uniform` on both.

Expected score (Table 11, MR and CR on the validation split): unnormalized 77.23 and 83.07%,
contrastive 77.51 and 82.28%, contrastive_cr 77.69 and 83.86%, align_uniform 73.76 and 80.95%. Not
measured at this size; docs/results.md has encoders of eight novels.

Expected time: 132,000 steps of 30 ms, an hour on a GPU (estimated).
"""

from hypersphere_jax.configs import ObjectiveConfig, PretrainConfig

CONTRASTIVE = PretrainConfig(
    name="quick_thought_contrastive",
    data="books",
    model="sentence_gru",
    dim=1200,
    embedding=620,
    contrastive_weight=1.0,
    contrastive_tau=0.075,
    align_weight=0.0,
    uniform_weight=0.0,
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
    log_every_steps=100,
)
ALIGN_UNIFORM = ObjectiveConfig(align_weight=0.9, align_alpha=2, uniform_weight=0.1, uniform_t=5)
VARIANTS = {
    "contrastive": CONTRASTIVE,
    "contrastive_cr": CONTRASTIVE.replace(contrastive_tau=0.05),
    "align_uniform": CONTRASTIVE.replace(**vars(ALIGN_UNIFORM)),
    "unnormalized": CONTRASTIVE.replace(contrastive_tau=1.0, unit_norm=False),
}
CONFIGS = {
    f"quick_thought/{variant}": config.replace(name=f"quick_thought_{variant}")
    for variant, config in VARIANTS.items()
}
