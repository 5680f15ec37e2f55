"""What `load` makes of a config: names and places, and parts that leak nothing into training."""

from data_cases import equal, images, why
from tfds_cases import example, noise, write

from hypersphere_jax import data
from hypersphere_jax.config import DataConfig
from hypersphere_jax.data import load, views


def test_parts_are_views_of_the_training_split(tmp_path):
    whole, classes = load(DataConfig()), tmp_path / "some.txt"
    train, test = whole.train, whole.test
    classes.write_text("7\n3  # the three\n")
    tail, fold = views.long_tailed(train, 3), views.fold(train, 5, 2, 3)
    for options, expected, tested in (
        ({"fraction": 0.1}, views.fraction(train, 0.1, 3), test),
        ({"subset": "long_tailed"}, tail, test),
        ({"subset": "uniform"}, views.uniform(train, 3, len(tail)), test),
        ({"subset": "uniform", "subset_size": 50}, views.uniform(train, 3, 50), test),
        ({"subset": "long_tailed", "fraction": 0.5}, views.fraction(tail, 0.5, 3), test),
        ({"folds": 5, "fold": 2, "fraction": 0.2}, views.fraction(fold[0], 0.2, 3), fold[1]),
        ({"classes": str(classes)}, *(views.by_class(part, "37") for part in (train, test))),
    ):
        found = load(DataConfig(subset_seed=3, **options))
        assert found.pretrain is found.train  # the encoder sees no more than its probe
        assert found.digest() == f"{expected.digest}-{tested.digest}" != whole.digest(), options
        assert found.class_names == expected.class_names


def test_the_encoder_of_a_part_sees_that_part_and_what_has_no_label(tmp_path):
    """As with STL-10: neither the fold nor what a fraction leaves out comes back in pretraining."""
    labelled = [example(image, i % 2) for i, image in enumerate(noise(20))]
    unlabelled = noise(7, seed=1)
    records = [example(image, -1) for image in unlabelled]
    write(tmp_path, {"train": [labelled], "test": [labelled[:2]], "unlabelled": [records]})
    for part, n in (({}, 20), ({"fraction": 0.5}, 10), ({"folds": 4, "fold": 1}, 15)):
        found = load(DataConfig(name="shapes", data_dir=str(tmp_path), **part))
        assert len(found.train) == n
        assert found.pretrain.labels.tolist() == [*found.train.labels.tolist(), *[-1] * 7]
        equal(images(found.pretrain), [*images(found.train), *unlabelled])


def test_bits_are_more_channels():
    plain, added = load(DataConfig()), load(DataConfig(bits=60))
    assert added.train.image_shape == (8, 8, 61) and added.pretrain is added.train
    for split, before in ((added.train, plain.train), (added.test, plain.test)):
        equal(split[3]["image"][..., :1], before[3]["image"])
        equal(split.labels, before.labels)
    # No image of the test split has the bits of the training image of its number.
    assert not (added.train.bits[:397] == added.test.bits).all(1).any()
    # Nor does a seed make the test split of another one's training split.
    configs = [DataConfig(name="random_bits", bits=9, subset_seed=seed) for seed in range(3)]
    splits = [split for config in configs for split in load(config)[:2]]
    assert len({split.digest for split in splits}) == 6 and load(configs[0]).recipe == "none"


def test_names_and_places(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    by_path = load(DataConfig(name=str(folder)))
    assert [len(by_path.train), len(by_path.test)] == [6, 3] and by_path.recipe == "stl10"
    for name, recipe in (("cifar100", "cifar10"), ("imagenet2012", "moco_v2"), ("stl10", "stl10")):
        named = load(DataConfig(name=name, data_dir=str(folder)))
        assert named.recipe == recipe and named.digest() == by_path.digest()
    assert "data prepare cifar10" in why(load, DataConfig(name="cifar10"))
    assert "did you mean 'digits'" in why(load, DataConfig(name="digit"))
    monkeypatch.chdir(tmp_path)
    config, some = DataConfig(name=folder.name, classes="some.txt"), str(tmp_path / "some.txt")
    assert data.located(config) == {"name": str(folder), "data_dir": None, "classes": some}
