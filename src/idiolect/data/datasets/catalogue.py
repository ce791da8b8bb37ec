"""The data sets by name: what each shows, who published it, where its files are and how they are read.

To add a data set of images, add one ``Card`` to ``SETS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# C channels, H height, W width


@dataclass(frozen=True)
class Origin:
    """Where the files of a data set, or of one domain of it, are published.

    Attributes:
        hub: owner/name on the Hugging Face hub; "" if they have to be downloaded by hand.
        train: the files of the training split: parquet; or IDX, first the images, then the labels; or MATLAB's.
        test: the files of the test split; () if there is none.
        address: where a person finds them; "" for the page of ``hub``.
    """

    hub: str = ""
    train: tuple[str, ...] = ("data/train-00000-of-00001.parquet",)
    test: tuple[str, ...] = ("data/test-00000-of-00001.parquet",)
    address: str = ""

    @property
    def page(self) -> str:
        """The address of the files."""
        return self.address or f"https://huggingface.co/datasets/{self.hub}"


@dataclass(frozen=True)
class Card:
    """What is known of a data set before it is read.

    Attributes:
        title: what it shows, in a few words.
        reference: who published it.
        licence: its licence, as its publisher or the hub states it.
        train_rows: samples of the official training split.
        test_rows: samples of the official test split; 0 if there is none.
        shape: (C, H, W).
        class_names: one name per class, in label order.
        mean: per channel, on a scale of 0 to 1; None to take the training samples'.
        std: per channel, on a scale of 0 to 1; None to take the training samples'.
        origin: where its files are published; None if it is bundled or has ``domains``.
        domains: by name, where the files of each domain are published; they make the column "domain".
        image: the files' column of images, by any of these names.
        label: the files' column of labels, by any of these names.
        columns: by name, the files' column of what else is known of each sample.
        client_column: the one of ``columns`` that says which client a sample belongs to, if there is one.
        labels: the labels in the files, if they are not those of ``class_names``; the first of them are the classes,
            and the samples of the others are left out.
        convert: whether an image of another mode is converted to grey or RGB, instead of refused.
        resize: whether an image of another size is resized (bilinear), instead of refused.
        transposed: whether the files have each image with its rows and columns exchanged.
        note: what a user should know besides.
    """

    title: str
    reference: str
    licence: str
    train_rows: int
    test_rows: int
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    origin: Origin | None = None
    domains: Mapping[str, Origin] = field(default_factory=dict)
    image: tuple[str, ...] = ("image", "img")
    label: tuple[str, ...] = ("label", "labels")
    columns: Mapping[str, str] = field(default_factory=dict)
    client_column: str | None = None
    labels: range | None = None
    convert: bool = False
    resize: bool = False
    transposed: bool = False
    note: str = ""


_DIGITS = tuple("0123456789")
_UPPER = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LOWER = tuple("abcdefghijklmnopqrstuvwxyz")

_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""

_TINY_IMAGENET = """
n01443537 n01629819 n01641577 n01644900 n01698640 n01742172 n01768244 n01770393 n01774384 n01774750 n01784675 n01855672
n01882714 n01910747 n01917289 n01944390 n01945685 n01950731 n01983481 n01984695 n02002724 n02056570 n02058221 n02074367
n02085620 n02094433 n02099601 n02099712 n02106662 n02113799 n02123045 n02123394 n02124075 n02125311 n02129165 n02132136
n02165456 n02190166 n02206856 n02226429 n02231487 n02233338 n02236044 n02268443 n02279972 n02281406 n02321529 n02364673
n02395406 n02403003 n02410509 n02415577 n02423022 n02437312 n02480495 n02481823 n02486410 n02504458 n02509815 n02666196
n02669723 n02699494 n02730930 n02769748 n02788148 n02791270 n02793495 n02795169 n02802426 n02808440 n02814533 n02814860
n02815834 n02823428 n02837789 n02841315 n02843684 n02883205 n02892201 n02906734 n02909870 n02917067 n02927161 n02948072
n02950826 n02963159 n02977058 n02988304 n02999410 n03014705 n03026506 n03042490 n03085013 n03089624 n03100240 n03126707
n03160309 n03179701 n03201208 n03250847 n03255030 n03355925 n03388043 n03393912 n03400231 n03404251 n03424325 n03444034
n03447447 n03544143 n03584254 n03599486 n03617480 n03637318 n03649909 n03662601 n03670208 n03706229 n03733131 n03763968
n03770439 n03796401 n03804744 n03814639 n03837869 n03838899 n03854065 n03891332 n03902125 n03930313 n03937543 n03970156
n03976657 n03977966 n03980874 n03983396 n03992509 n04008634 n04023962 n04067472 n04070727 n04074963 n04099969 n04118538
n04133789 n04146614 n04149813 n04179913 n04251144 n04254777 n04259630 n04265275 n04275548 n04285008 n04311004 n04328186
n04356056 n04366367 n04371430 n04376876 n04398044 n04399382 n04417672 n04456115 n04465501 n04486054 n04487081 n04501370
n04507155 n04532106 n04532670 n04540053 n04560804 n04562935 n04596742 n04597913 n06596364 n07579787 n07583066 n07614500
n07615774 n07695742 n07711569 n07715103 n07720875 n07734744 n07747607 n07749582 n07753592 n07768694 n07871810 n07873807
n07875152 n07920052 n09193705 n09246464 n09256479 n09332890 n09428293 n12267677
"""

_MNIST = Origin("ylecun/mnist", ("mnist/train-00000-of-00001.parquet",), ("mnist/test-00000-of-00001.parquet",))
_MNIST_M = Origin(
    "Mike0307/MNIST-M",
    ("data/train-00000-of-00001-571b6b1e2c195186.parquet",),
    ("data/test-00000-of-00001-ba3ad971b105ff65.parquet",),
)
_SVHN = Origin(
    "ufldl-stanford/svhn",
    ("cropped_digits/train-00000-of-00001.parquet",),
    ("cropped_digits/test-00000-of-00001.parquet",),
)
_SYNTH_DIGITS = Origin(
    train=("synth_train_32x32.mat",),
    test=("synth_test_32x32.mat",),
    address="http://yaroslav.ganin.net (SynthDigits.zip)",
)
_USPS = Origin("flwrlabs/usps")

SETS: dict[str, Card] = {
    "digits": Card(
        title="handwritten digits, 8x8 grey",
        reference="Alpaydin & Kaynak 1998, the test part, as bundled with scikit-learn",
        licence="CC BY 4.0",
        train_rows=1797,
        test_rows=0,
        shape=(1, 8, 8),
        class_names=_DIGITS,
        mean=(0.3053,),
        std=(0.3759,),
    ),
    "mnist": Card(
        title="handwritten digits, 28x28 grey",
        reference="LeCun, Bottou, Bengio & Haffner 1998",
        licence="MIT, as stated on the hub",
        train_rows=60_000,
        test_rows=10_000,
        shape=(1, 28, 28),
        class_names=_DIGITS,
        mean=(0.1307,),
        std=(0.3081,),
        origin=_MNIST,
    ),
    "fashion_mnist": Card(
        title="articles of clothing, 28x28 grey",
        reference="Xiao, Rasul & Vollgraf 2017",
        licence="MIT",
        train_rows=60_000,
        test_rows=10_000,
        shape=(1, 28, 28),
        class_names=(
            "T-shirt/top",
            "trouser",
            "pullover",
            "dress",
            "coat",
            "sandal",
            "shirt",
            "sneaker",
            "bag",
            "ankle boot",
        ),
        mean=(0.1307,),
        std=(0.3081,),
        origin=Origin(
            "zalando-datasets/fashion_mnist",
            ("fashion_mnist/train-00000-of-00001.parquet",),
            ("fashion_mnist/test-00000-of-00001.parquet",),
        ),
    ),
    "emnist": Card(
        title="handwritten digits and letters (EMNIST by class), 28x28 grey",
        reference="Cohen, Afshar, Tapson & van Schaik 2017",
        licence="none stated by NIST; MIT, as stated on the hub",
        train_rows=697_932,
        test_rows=116_323,
        shape=(1, 28, 28),
        class_names=_DIGITS + _UPPER + _LOWER,
        mean=(0.1307,),
        std=(0.3081,),
        origin=Origin(
            "Royc30ne/emnist-byclass",
            ("emnist-byclass-train-images-idx3-ubyte.gz", "emnist-byclass-train-labels-idx1-ubyte.gz"),
            ("emnist-byclass-test-images-idx3-ubyte.gz", "emnist-byclass-test-labels-idx1-ubyte.gz"),
        ),
        transposed=True,
        note="The published images are transposed; they are turned upright.",
    ),
    "emnist_letters": Card(
        title="handwritten letters, the first ten of EMNIST letters, 28x28 grey",
        reference="Cohen, Afshar, Tapson & van Schaik 2017; the ten classes as in FedCR (EMNIST-L)",
        licence="none stated",
        train_rows=48_000,
        test_rows=8_000,
        shape=(1, 28, 28),
        class_names=_UPPER[:10],
        mean=None,
        std=None,
        origin=Origin(
            "tanganke/emnist_letters",
            ("emnist-letters/train-00000-of-00001.parquet",),
            ("emnist-letters/test-00000-of-00001.parquet",),
        ),
        labels=range(26),
        transposed=True,
        note="The files hold 26 letters as labels 0 to 25, transposed; K to Z are left out, the rest turned upright.",
    ),
    "femnist": Card(
        title="handwritten digits and letters by writer (FEMNIST), 28x28 grey",
        reference="Caldas, Duddu, Wu, Li, Konecny, McMahan, Smith & Talwalkar 2018 (LEAF)",
        licence="BSD 2-Clause, as stated on the hub",
        train_rows=814_277,
        test_rows=0,
        shape=(1, 28, 28),
        class_names=_DIGITS + _UPPER + _LOWER,
        mean=None,
        std=None,
        origin=Origin("flwrlabs/femnist", test=()),
        label=("character", "label"),
        columns={"writer": "writer_id"},
        client_column="writer",
        convert=True,
        note="All writers, about 3,600, in one split: there is no official test split.",
    ),
    "cifar10": Card(
        title="animals and vehicles, 32x32 colour",
        reference="Krizhevsky 2009",
        licence="none stated; research use",
        train_rows=50_000,
        test_rows=10_000,
        shape=(3, 32, 32),
        class_names=_CIFAR10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        origin=Origin(
            "uoft-cs/cifar10",
            ("plain_text/train-00000-of-00001.parquet",),
            ("plain_text/test-00000-of-00001.parquet",),
        ),
        image=("img", "image"),
    ),
    "cifar100": Card(
        title="a hundred kinds of things, 32x32 colour",
        reference="Krizhevsky 2009",
        licence="none stated; research use",
        train_rows=50_000,
        test_rows=10_000,
        shape=(3, 32, 32),
        class_names=tuple(_CIFAR100.split()),
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
        origin=Origin(
            "uoft-cs/cifar100",
            ("cifar100/train-00000-of-00001.parquet",),
            ("cifar100/test-00000-of-00001.parquet",),
        ),
        image=("img", "image"),
        label=("fine_label", "label", "labels"),
    ),
    "cinic10": Card(
        title="animals and vehicles of CIFAR-10 and ImageNet, 32x32 colour",
        reference="Darlow, Crowley, Antoniou & Storkey 2018",
        licence="CC BY 4.0, as stated on the hub",
        train_rows=90_000,
        test_rows=90_000,
        shape=(3, 32, 32),
        class_names=_CIFAR10,
        mean=(0.47889522, 0.47227842, 0.43047404),
        std=(0.24205776, 0.23828046, 0.25874835),
        origin=Origin("flwrlabs/cinic10"),
        convert=True,
        note="The training and the test split; the validation split, another 90,000 samples, is not used.",
    ),
    "tiny_imagenet": Card(
        title="two hundred kinds of things, 64x64 colour",
        reference="Le & Yang 2015, from ImageNet",
        licence="none stated; ImageNet's terms: non-commercial research",
        train_rows=100_000,
        test_rows=10_000,
        shape=(3, 64, 64),
        class_names=tuple(_TINY_IMAGENET.split()),
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        origin=Origin(
            "zh-plus/tiny-imagenet",
            ("data/train-00000-of-00001-1359597a978bc4fa.parquet",),
            ("data/valid-00000-of-00001-70d52db3c749a935.parquet",),
        ),
        convert=True,
        note="The published validation split is the test split here, as the published test split has no labels.",
    ),
    "digit5": Card(
        title="digits of five domains (DIGIT-5), 32x32 colour",
        reference="MNIST, SVHN (Netzer et al. 2011), USPS (Hull 1994), SynthDigits, MNIST-M (Ganin & Lempitsky 2015)",
        licence="each domain's own; SVHN: non-commercial",
        train_rows=60_000 + 73_257 + 7_291 + 479_400 + 59_001,
        test_rows=10_000 + 26_032 + 2_007 + 9_553 + 9_001,
        shape=(3, 32, 32),
        class_names=_DIGITS,
        mean=None,
        std=None,
        domains={
            "mnist": _MNIST,
            "svhn": _SVHN,
            "usps": _USPS,
            "synth_digits": _SYNTH_DIGITS,
            "mnist_m": _MNIST_M,
        },
        columns={"domain": "domain"},
        client_column="domain",
        convert=True,
        resize=True,
        note="Every sample of every domain, resized to 32x32; SynthDigits has to be downloaded by hand.",
    ),
    "digits3": Card(
        title="digits of three of DIGIT-5's five domains, and so not DIGIT-5, 32x32 colour",
        reference="MNIST, USPS (Hull 1994) and MNIST-M (Ganin & Lempitsky 2015)",
        licence="each domain's own",
        train_rows=60_000 + 7_291 + 59_001,
        test_rows=10_000 + 2_007 + 9_001,
        shape=(3, 32, 32),
        class_names=_DIGITS,
        mean=None,
        std=None,
        domains={"mnist": _MNIST, "usps": _USPS, "mnist_m": _MNIST_M},
        columns={"domain": "domain"},
        client_column="domain",
        convert=True,
        resize=True,
        note="Every sample of every domain, resized to 32x32; SVHN and SynthDigits are missing.",
    ),
}
