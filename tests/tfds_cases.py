"""Prepared data sets as TensorFlow Datasets leaves them, written without TensorFlow."""

import io
import json
import struct

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2

FEATURES = "tensorflow_datasets.core.features."


def encoded(image):
    """PNG of uint8 `[h, w, c]`."""
    stream = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(stream, "PNG")
    return stream.getvalue()


def example(image, label=None, depth=None):
    """A serialized tf.train.Example; `image` an array or the bytes of a file."""
    proto = tf_example_pb2.Example()
    features = proto.features.feature
    data = image if isinstance(image, bytes) else encoded(image)
    features["image"].bytes_list.value.append(data)
    if label is not None:
        features["label"].int64_list.value.append(label)
    if depth is not None:
        features["depth"].float_list.value.extend(depth.ravel().tolist())
    return proto.SerializeToString()


def pictures(n, shape=(8, 8, 3), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def write(root, splits, where="shapes/1.0.0", names=("circle", "square"), shape=(8, 8, 3), **more):
    """Writes a data set; `splits` holds the serialized examples of each, by shard.

    Args:
      root: folder of all data sets.
      splits: {"train": [[example, …], …]}.
      where: name/version or name/config/version.
      names: of the classes; empty: no labels.
      shape: of the images, None where they differ.
      more: `depth`: shape of that feature; `dtype` of the images; `form`: the file format.
    """
    folder = root / where
    folder.mkdir(parents=True)
    name, *config, version = where.split("/")
    form = more.get("form", "array_record")
    for split, shards in splits.items():
        for number, records in enumerate(shards):
            file = folder / f"{name}-{split}.{form}-{number:05d}-of-{len(shards):05d}"
            (_tfrecord if form == "tfrecord" else _array_record)(file, records)
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    info = {
        "fileFormat": form,
        "name": name,
        "version": version,
        "splits": [
            {
                "name": split,
                "filepathTemplate": template,
                "numBytes": str(sum(len(record) for records in shards for record in records)),
                "shardLengths": [str(len(records)) for records in shards],
            }
            for split, shards in splits.items()
        ],
    }
    if config:
        info["configName"] = config[0]
    (folder / "dataset_info.json").write_text(json.dumps(info))
    image = {"dtype": more.get("dtype", "uint8"), "shape": _shape(shape)}
    features = {"image": {"pythonClassName": f"{FEATURES}image_feature.Image", "image": image}}
    if names:
        features["label"] = {
            "pythonClassName": f"{FEATURES}class_label_feature.ClassLabel",
            "classLabel": {"numClasses": str(len(names))},
        }
        (folder / "label.labels.txt").write_text("\n".join(names) + "\n")
    if "depth" in more:
        features["depth"] = {
            "pythonClassName": f"{FEATURES}tensor_feature.Tensor",
            "tensor": {"dtype": "float32", "encoding": "none", "shape": _shape(more["depth"])},
        }
    whole = {
        "pythonClassName": f"{FEATURES}features_dict.FeaturesDict",
        "featuresDict": {"features": features},
    }
    (folder / "features.json").write_text(json.dumps(whole))
    return folder


def _shape(shape):
    return {"dimensions": [str(-1 if side is None else side) for side in shape]}


def _array_record(file, records):
    writer = ArrayRecordWriter(str(file), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def _tfrecord(file, records):
    with open(file, "wb") as stream:
        for record in records:
            stream.write(struct.pack("<QI", len(record), 0) + record + b"\0\0\0\0")
