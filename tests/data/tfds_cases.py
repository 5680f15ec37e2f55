"""Prepared data sets as TensorFlow Datasets leaves them, written without TensorFlow."""

import json

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from data_cases import encoded
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2

TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


def noise(n, shape=(8, 8, 3), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def example(image, label=0, depth=()):
    """A serialized tf.train.Example; `image` is uint8 `[h, w, 3]`, or the bytes of a file."""
    if not isinstance(image, bytes):
        image = encoded(Image.fromarray(image))
    proto = tf_example_pb2.Example()
    proto.features.feature["image"].bytes_list.value.append(image)
    proto.features.feature["label"].int64_list.value.append(label)
    proto.features.feature["depth"].float_list.value.extend(np.ravel(depth).tolist())
    return proto.SerializeToString()


def write(root, splits, where="shapes/1.0.0", depth=None):
    """Write `splits`, {"train": [shard of examples, …]}; with a `depth`, without labels."""
    folder = root / where
    folder.mkdir(parents=True)
    name, *config, version = where.split("/")
    info = {"fileFormat": "array_record", "name": name, "version": version, "splits": []}
    if config:
        info["configName"] = config[0]
    for split, shards in splits.items():
        for number, records in enumerate(shards):
            file = f"{name}-{split}.array_record-{number:05d}-of-{len(shards):05d}"
            writer = ArrayRecordWriter(str(folder / file), "group_size:1")
            for record in records:
                writer.write(record)
            writer.close()
        lengths = [str(len(records)) for records in shards]
        part = {"name": split, "filepathTemplate": TEMPLATE, "shardLengths": lengths}
        info["splits"].append(part)
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "label.labels.txt").write_text("circle\nsquare\n")
    image = {"dtype": "uint8", "shape": {"dimensions": ["8", "8", "3"]}}
    features = {"image": _feature("image_feature.Image", image=image)}
    if depth is None:
        label = _feature("class_label_feature.ClassLabel", classLabel={"numClasses": "2"})
        features["label"] = label
    else:
        shape = {"dimensions": [str(side) for side in depth]}
        tensor = {"dtype": "float32", "shape": shape, "encoding": "none"}
        features["depth"] = _feature("tensor_feature.Tensor", tensor=tensor)
    whole = _feature("features_dict.FeaturesDict", featuresDict={"features": features})
    (folder / "features.json").write_text(json.dumps(whole))
    return folder


def _feature(kind, **content):
    return {"pythonClassName": f"tensorflow_datasets.core.features.{kind}", **content}
