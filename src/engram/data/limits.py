"""How much a file from elsewhere may ask for, each with its reason. What is above is refused before it is read."""

SIDE = 1 << 15
"""Pixels along one side of an image: more than any camera has, and a line of them is scaled in little memory."""
PIXELS = 1 << 26
"""Of one image, 8192x8192: in colour 200 MB, and 800 MB as floats while it is scaled."""
IMAGE_FILE = 1 << 28
"""Bytes of an image's file: an image of PIXELS that is not compressed at all fits."""
UNPACKED = 1 << 31
"""Bytes that a data file may unpack to, or an IDX, MATLAB or CIFAR file may hold: forty times MNIST, six times SVHN."""
CLASSES = 1 << 16
"""Three times those of the whole ImageNet."""
EXAMPLES = 1 << 25
"""Of a prepared set: twice those of the whole ImageNet. Which is where takes 16 bytes an example."""
MANIFEST = 1 << 24
"""Bytes of a prepared set's manifest: in two parts, a checksum and a count for each of CLASSES, and 80 of its name."""
TEXT = 1 << 22
"""Bytes of a list of names or labels in a text file: a line for each of 100,000."""

DOWNLOAD = 1 << 29
"""Bytes of one file over the network; the largest of a known set has 182 MB."""
DOWNLOAD_S = 3600.0
"""For one file, all in all: 182 MB at 50 kB a second."""
ARCHIVE = 1 << 29
"""Bytes that a fetched archive may unpack to; CIFAR-10 has 184 MB."""
MEMBER = 1 << 26
"""Of them, of one file; the largest that is wanted are the 47 MB of MNIST's training images."""
XZ_MEMORY = 1 << 28
"""Bytes that unpacking xz may take; its highest level takes 65 MB."""
