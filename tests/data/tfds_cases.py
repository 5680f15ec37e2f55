"""Prepared data sets as TensorFlow Datasets leaves them, written without TensorFlow."""

import json
import struct

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from data_cases import encoded
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2


def noise(n, shape=(8, 8, 3), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def example(image, label=0, depth=()):
    """A serialized tf.train.Example; `image` is uint8 `[h, w, c]`, or the bytes of a file."""
    if not isinstance(image, bytes):
        image = encoded(Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image))
    proto = tf_example_pb2.Example()
    proto.features.feature["image"].bytes_list.value.append(image)
    proto.features.feature["label"].int64_list.value.append(label)
    proto.features.feature["depth"].float_list.value.extend(np.ravel(depth).tolist())
    return proto.SerializeToString()


def write(root, splits, where="shapes/1.0.0", shape=(8, 8, 3), depth=None, form="array_record"):
    """Writes `splits`, {"train": [shard of examples, …]}; with a `depth` there are no labels."""
    folder, (name, *config, version) = root / where, where.split("/")
    folder.mkdir(parents=True)
    info = {"fileFormat": form, "name": name, "version": version, "splits": []}
    info |= {"configName": config[0]} if config else {}
    for split, shards in splits.items():
        for number, records in enumerate(shards):
            file = folder / f"{name}-{split}.{form}-{number:05d}-of-{len(shards):05d}"
            if form == "tfrecord":
                framed = (struct.pack("<QI", len(r), 0) + r + bytes(4) for r in records)
                file.write_bytes(b"".join(framed))
                continue
            writer = ArrayRecordWriter(str(file), "group_size:1")
            for record in records:
                writer.write(record)
            writer.close()
        part = {"name": split, "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"}
        info["splits"].append(part | {"shardLengths": [str(len(records)) for records in shards]})
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "label.labels.txt").write_text("circle\nsquare\n")
    sizes = {"dimensions": ["-1" if side is None else str(side) for side in shape]}
    features = {"image": _feature("image_feature.Image", image={"dtype": "uint8", "shape": sizes})}
    two = {"numClasses": "2"}
    if depth is None:
        features["label"] = _feature("class_label_feature.ClassLabel", classLabel=two)
    else:
        tensor = {"dtype": "float32", "shape": {"dimensions": [str(side) for side in depth]}}
        features["depth"] = _feature("tensor_feature.Tensor", tensor=tensor | {"encoding": "none"})
    whole = _feature("features_dict.FeaturesDict", featuresDict={"features": features})
    (folder / "features.json").write_text(json.dumps(whole))
    return folder


def _feature(kind, **content):
    return {"pythonClassName": f"tensorflow_datasets.core.features.{kind}", **content}
