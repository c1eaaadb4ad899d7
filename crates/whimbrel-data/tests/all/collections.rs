//! Samples for learners: CIFAR, JPEG images, LEAF and speeches, from small files made here and from
//! the published ones.

use crate::gzipped;
use std::path::Path;
use whimbrel_core::{Inputs, Samples, Targets};
use whimbrel_data::{
    Alphabet, Cifar, Source, SpeechOptions, read_cifar, read_idx_images, read_jpeg_folder,
    read_jpegs, read_leaf, read_speeches,
};
use whimbrel_testkit::data_file;
use whimbrel_testkit::pairs;

fn bytes(samples: &Samples) -> &[u8] {
    let Inputs::Bytes(bytes) = &samples.inputs else { panic!("not bytes") };
    bytes
}

fn symbols(samples: &Samples) -> &[u16] {
    let Inputs::Symbols(symbols) = &samples.inputs else { panic!("not symbols") };
    symbols
}

fn classes(samples: &Samples) -> (&[u16], usize) {
    let Targets::Classes { of, count } = &samples.targets else { panic!("not classes") };
    (of, *count)
}

fn record(labels: &[u8], pixel: u8) -> Vec<u8> {
    let planes = [[pixel; 1024], [pixel + 1; 1024], [pixel + 2; 1024]];
    [labels.to_vec(), planes.concat()].concat()
}

#[test]
fn cifar_batches_are_read_in_the_order_of_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| std::fs::write(folder.path().join(name), content);
    file("data_batch_2.bin", &record(&[9], 50)).unwrap();
    file("data_batch_1.bin.gz", &gzipped(&[record(&[3], 10), record(&[0], 20)].concat())).unwrap();
    file("batches.meta.txt", b"airplane\n").unwrap();
    let read = read_cifar(folder.path(), Cifar::Ten).unwrap();
    assert_eq!(read.samples.shape, [3, 32, 32]);
    assert_eq!(classes(&read.samples), (&[3, 0, 9][..], 10));
    assert_eq!(bytes(&read.samples)[2 * 3072..][..1025].last(), Some(&51));
    assert!(read.coarse.is_empty() && read.classes[9] == "9");

    let path = folder.path().join("train.bin");
    std::fs::write(&path, [record(&[19, 99], 1), record(&[4, 0], 2)].concat()).unwrap();
    let fine = read_cifar(&path, Cifar::Hundred { coarse: false }).unwrap();
    assert_eq!((classes(&fine.samples), &fine.coarse[..]), ((&[99, 0][..], 100), &[19, 4][..]));
    let coarse = read_cifar(&path, Cifar::Hundred { coarse: true }).unwrap();
    assert_eq!(classes(&coarse.samples), (&[19, 4][..], 20));
}

#[test]
fn damaged_cifar_files_are_refused_by_file_and_image() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    let refused = |content: &[u8], set| {
        std::fs::write(&path, content).unwrap();
        read_cifar(&path, set).unwrap_err().to_string()
    };
    let two = [record(&[1], 0), record(&[2], 0)].concat();
    let message = refused(&two[..4000], Cifar::Ten);
    assert!(message.contains("a.bin: image 2: the file ends after 927 of its 3073"), "{message}");
    let message = refused(&record(&[10], 0), Cifar::Ten);
    assert!(message.contains("image 1: label 10 of 10 classes"), "{message}");
    let message = refused(&record(&[20, 0], 0), Cifar::Hundred { coarse: false });
    assert!(message.contains("label 20 of 20 classes"), "{message}");
    std::fs::remove_file(&path).unwrap();
    let message = read_cifar(folder.path(), Cifar::Ten).unwrap_err().to_string();
    assert!(message.contains("no .bin file"), "{message}");
}

/// A grey image of `blocks` times 8 by 8 pixels in a row, all of one level: baseline JPEG.
fn jpeg(blocks: u8, level: u8) -> Vec<u8> {
    let mut out = vec![0xFF, 0xD8];
    let mut segment = |marker: u8, body: &[u8]| {
        out.extend([0xFF, marker]);
        out.extend((body.len() as u16 + 2).to_be_bytes());
        out.extend(body);
    };
    segment(0xDB, &[&[0][..], &[8; 64]].concat());
    segment(0xC0, &[8, 0, 8, 0, 8 * blocks, 1, 1, 0x11, 0]);
    // Twelve codes of four bits for the mean, one of one bit for the end of a block.
    let dc: Vec<u8> = [&[0, 0, 0, 0, 12][..], &[0; 12], &(0..12).collect::<Vec<u8>>()].concat();
    segment(0xC4, &dc);
    segment(0xC4, &[&[0x10, 1][..], &[0; 15], &[0]].concat());
    segment(0xDA, &[1, 1, 0, 0, 63, 0]);
    let difference = i32::from(level) - 128;
    let size = 32 - difference.unsigned_abs().leading_zeros();
    let value = if difference < 0 { difference + (1 << size) - 1 } else { difference };
    let mut bits = format!("{size:04b}");
    if size > 0 {
        bits += &format!("{value:0width$b}", width = size as usize);
    }
    bits += "0";
    bits += &"00000".repeat(usize::from(blocks) - 1);
    bits += &"1".repeat((8 - bits.len() % 8) % 8);
    for at in (0..bits.len()).step_by(8) {
        let byte = u8::from_str_radix(&bits[at..at + 8], 2).unwrap();
        out.push(byte);
        if byte == 0xFF {
            out.push(0);
        }
    }
    out.extend([0xFF, 0xD9]);
    out
}

fn labels(of: &[u8]) -> Vec<u8> {
    [&[0, 0, 8, 1, 0, 0, 0, of.len() as u8][..], of].concat()
}

#[test]
fn jpeg_images_are_read_from_folders_and_from_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let images = [("frog/2.jpg", 90), ("frog/10.JPEG", 200), ("cat/1.jpg", 30)];
    for (name, level) in images {
        std::fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        std::fs::write(at(name), jpeg(2, level)).unwrap();
    }
    std::fs::write(at("frog/notes.txt"), "no image").unwrap();
    let read = read_jpeg_folder(folder.path()).unwrap();
    assert_eq!(read.classes, ["cat", "frog"]);
    assert_eq!(
        (classes(&read.samples), &read.samples.shape[..]),
        ((&[0, 1, 1][..], 2), &[3, 8, 16][..])
    );
    for (image, level) in pairs(bytes(&read.samples).chunks(3 * 128), [30, 200, 90]) {
        assert!(image.iter().all(|byte| byte.abs_diff(level) <= 1), "{level}: {image:?}");
    }

    let (first, second) = (jpeg(1, 60), jpeg(1, 61));
    let end = (first.len() + second.len()) as u32;
    let offsets = [0, first.len() as u32, end].map(u32::to_le_bytes).concat();
    std::fs::write(at("all.gz"), gzipped(&[first, second].concat())).unwrap();
    std::fs::write(at("offsets"), &offsets).unwrap();
    std::fs::write(at("labels"), labels(&[7, 3])).unwrap();
    let read = read_jpegs(at("all.gz"), at("offsets"), at("labels")).unwrap();
    assert_eq!(
        (classes(&read.samples), &read.classes[..]),
        ((&[1, 0][..], 2), &["3".into(), "7".into()][..])
    );
    assert_eq!(read.samples.shape, [3, 8, 8]);

    let message = |result: Result<whimbrel_data::LabelledImages, whimbrel_data::Error>| {
        result.unwrap_err().to_string()
    };
    std::fs::write(at("labels"), labels(&[7])).unwrap();
    let text = message(read_jpegs(at("all.gz"), at("offsets"), at("labels")));
    assert!(text.contains("labels: it has numbers for 1 images, but there are 2"), "{text}");
    std::fs::write(at("offsets"), [0u32, 9, end + 1].map(u32::to_le_bytes).concat()).unwrap();
    let text = message(read_jpegs(at("all.gz"), at("offsets"), at("labels")));
    assert!(text.contains("offsets: offsets 9 to") && text.contains("of image 2"), "{text}");
    std::fs::write(at("offsets"), [0u32, 9, end].map(u32::to_le_bytes).concat()).unwrap();
    std::fs::write(at("labels"), labels(&[7, 3])).unwrap();
    let text = message(read_jpegs(at("all.gz"), at("offsets"), at("labels")));
    assert!(text.contains("all.gz: image 1: this is not a JPEG image"), "{text}");
    std::fs::write(at("cat/2.jpg"), jpeg(1, 5)).unwrap();
    let text = message(read_jpeg_folder(folder.path()));
    let wanted = "2.jpg: the image has 8 x 8 pixels, but the first has 16 x 8";
    assert!(text.contains(wanted), "{text}");
}

/// A name, and images of four pixels with their labels.
type User<'a> = (&'a str, &'a [([u8; 4], u8)]);

#[test]
fn leaf_users_are_clients_with_common_classes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let pixels = |x: [u8; 4]| format!("{:?}", x.map(|byte| f64::from(byte) / 255.0));
    let file = |users: &[User<'_>]| {
        let names: Vec<_> = users.iter().map(|(name, _)| format!("{name:?}")).collect();
        let data: Vec<String> = users
            .iter()
            .map(|(name, samples)| {
                let x: Vec<String> = samples.iter().map(|(x, _)| pixels(*x)).collect();
                let y: Vec<String> = samples.iter().map(|(_, y)| y.to_string()).collect();
                format!("{name:?}: {{\"x\": [{}], \"y\": [{}]}}", x.join(","), y.join(","))
            })
            .collect();
        let (names, data) = (names.join(","), data.join(","));
        format!("{{\"users\": [{names}], \"num_samples\": [], \"user_data\": {{{data}}}}}")
    };
    std::fs::create_dir_all(at("train")).unwrap();
    std::fs::create_dir_all(at("test")).unwrap();
    std::fs::write(at("train/1.json"), file(&[("f2", &[([0, 1, 254, 255], 40)])])).unwrap();
    std::fs::write(at("train/0.json"), file(&[("f10", &[([9; 4], 7), ([8; 4], 40)])])).unwrap();
    std::fs::write(at("test/0.json"), file(&[("f2", &[([3; 4], 61)]), ("f9", &[([4; 4], 7)])]))
        .unwrap();
    let alphabet = Alphabet::default();
    let read = read_leaf(at("train"), Some(&at("test")), &alphabet).unwrap();
    assert_eq!(read.classes, ["7", "40", "61"]);
    let names: Vec<&str> = read.clients.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["f10", "f2", "f9"]);
    let [f10, f2, f9] = [0, 1, 2].map(|i| &read.clients[i].1);
    assert_eq!((classes(f10), bytes(f10)), ((&[0, 1][..], 3), &[9, 9, 9, 9, 8, 8, 8, 8][..]));
    assert_eq!((classes(f2).0, bytes(f2)), (&[1][..], &[0, 1, 254, 255][..]));
    assert_eq!(classes(f2.held_out.test.as_deref().unwrap()).0, [2]);
    assert!(f9.is_empty() && classes(f9.held_out.test.as_deref().unwrap()).0 == [0]);
    assert!(f10.held_out.is_empty());

    let refused = |text: &str| {
        std::fs::write(at("x.json"), text).unwrap();
        read_leaf(at("x.json"), None, &alphabet).unwrap_err().to_string()
    };
    let with = |data: &str| format!("{{\"users\": [\"u\"], \"user_data\": {{\"u\": {data}}}}}");
    for (text, wanted) in [
        ("{\"users\": [\"u\"], \"user_data\": {}}".to_owned(), "user \"u\" has no `user_data`"),
        (with("{\"x\": [[1, 2], [1]], \"y\": [0, 1]}"), "sample 2: 1 numbers, but the first has 2"),
        (with("{\"x\": [[1, 2]], \"y\": [0, 1]}"), "user \"u\": 1 inputs for 2 labels"),
        (with("{\"x\": [\"ab\"], \"y\": [1]}"), "sample 1: an input of numbers has a number"),
        (with("{\"x\": [\"a€\"], \"y\": [\"b\"]}"), "sample 1: '€' is not in the alphabet"),
        (with("{\"x\": [[1, \"a\"]], \"y\": [1]}"), "this is not LEAF's JSON"),
        (with("{\"x\": [], \"y\": []}"), "no samples"),
        ("{\"users\": [\"u\"".to_owned(), "this is not LEAF's JSON: EOF"),
    ] {
        let message = refused(&text);
        assert!(message.contains(wanted), "{message}");
    }
    let text = with("{\"x\": [\"ab\", \"ba\"], \"y\": [\"c\", \"\\n\"]}");
    std::fs::write(at("x.json"), text).unwrap();
    let read = read_leaf(at("x.json"), None, &alphabet).unwrap();
    let own = &read.clients[0].1;
    let [a, b, c] = ['a', 'b', 'c'].map(|c| alphabet.number(c).unwrap());
    assert_eq!((classes(own), symbols(own)), ((&[c, 0][..], 80), &[a, b, b, a][..]));
    // Numbers that are no bytes over 255 stay as they are.
    std::fs::write(at("x.json"), with("{\"x\": [[0.5, -2]], \"y\": [1]}")).unwrap();
    let read = read_leaf(at("x.json"), None, &alphabet).unwrap();
    assert_eq!(read.clients[0].1.inputs, Inputs::Real(vec![0.5, -2.0]));
}

fn speeches(folder: &Path, text: &str) -> std::path::PathBuf {
    let path = folder.join("speeches.tsv");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn speeches_become_windows_that_no_two_parts_share() {
    let folder = tempfile::tempdir().unwrap();
    let text = "play\trole\ttext\nhamlet\tGHOST\tmark\\nme\nhamlet\tKING\ta\nhamlet\tGHOST\t€so\n";
    let path = speeches(folder.path(), text);
    let options = SpeechOptions { window: 3, ..SpeechOptions::default() };
    let read = read_speeches(&path, &options).unwrap();
    assert_eq!((read.left_out, read.unknown, read.speakers.len()), (1, 1, 1));
    let (name, text) = &read.speakers[0];
    let names = options.alphabet.names();
    let said: String = text.iter().map(|symbol| names[usize::from(*symbol)].as_str()).collect();
    assert_eq!((name.as_str(), said.as_str()), ("hamlet-GHOST", "mark\nme\nso"));

    // Ten symbols: six for training (three windows), none of the two others long enough.
    let own = options.windows(text, 0.2, 0.2).unwrap();
    assert_eq!((own.len(), own.shape.as_slice(), own.held_out.is_empty()), (3, &[3][..], true));
    assert_eq!(symbols(&own), [&text[0..3], &text[1..4], &text[2..5]].concat());
    assert_eq!(classes(&own), (&text[3..6], 80));
    let own = options.windows(text, 0.0, 0.5).unwrap();
    let test = own.held_out.test.as_deref().unwrap();
    assert_eq!((own.len(), test.len()), (2, 2));
    assert_eq!(symbols(test)[..3], text[5..8]);
    let sparse = SpeechOptions { stride: 2, ..options.clone() };
    assert_eq!(
        classes(&sparse.windows(text, 0.0, 0.0).unwrap()).0,
        [text[3], text[5], text[7], text[9]]
    );

    let refused = |text: &str, options: &SpeechOptions| {
        read_speeches(speeches(folder.path(), text), options).unwrap_err().to_string()
    };
    let message = refused("play\trole\ttext\na\tb\n", &options);
    assert!(message.contains("speeches.tsv: line 2: 2 cells, but the header has 3"), "{message}");
    let message = refused("act\trole\ttext\n", &options);
    assert!(message.contains("has no column \"play\""), "{message}");
    assert!(Alphabet::new("abca").is_err() && Alphabet::new("a").is_err());
}

#[test]
fn emnist_images_are_turned() {
    let file =
        [&[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3][..], &[0, 1, 2, 3, 4, 5], &[6; 6]];
    let mut images = read_idx_images(Source::bytes("images", &file.concat())).unwrap();
    images.transpose().unwrap();
    let targets = Targets::Classes { of: vec![1], count: 2 };
    let turned = images.samples(&[0], targets).unwrap();
    assert_eq!((bytes(&turned), &turned.shape[..]), (&[0, 3, 1, 4, 2, 5][..], &[1, 3, 2][..]));
}

#[test]
fn the_published_jpegs_are_near_the_published_pixels() {
    let [Some(jpegs), Some(offsets), Some(labels), Some(exact)] = [
        "cifar10/test.jpgs.gz",
        "cifar10/test.offsets.u32le.gz",
        "cifar10/test.labels-idx1-ubyte.gz",
        "cifar10/data_batch_1.first4000.bin.gz",
    ]
    .map(data_file) else {
        return;
    };
    let read = read_jpegs(jpegs, offsets, labels).unwrap();
    assert_eq!((read.samples.len(), &read.samples.shape[..]), (10_000, &[3, 32, 32][..]));
    let (of, count) = classes(&read.samples);
    assert_eq!(count, 10);
    assert!((0..10).all(|class| of.iter().filter(|c| **c == class).count() == 1000));
    let exact = read_cifar(exact, Cifar::Ten).unwrap();
    assert_eq!(classes(&exact.samples).0[..10], [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]);
    // Two halves of one set: means of each colour agree to a few grey levels.
    let mean = |samples: &Samples, colour: usize| {
        let planes = bytes(samples).chunks(1024).skip(colour).step_by(3);
        planes.flatten().map(|byte| f64::from(*byte)).sum::<f64>() / (samples.len() * 1024) as f64
    };
    for colour in 0..3 {
        let (lossy, lossless) = (mean(&read.samples, colour), mean(&exact.samples, colour));
        // The mean of an image has a standard deviation below 40.
        assert!((lossy - lossless).abs() < 4.0 * 40.0 / 4000f64.sqrt(), "{lossy} {lossless}");
    }
}

#[test]
fn shakespeare_has_its_roles() {
    let Some(path) = data_file("shakespeare/speeches.tsv.gz") else { return };
    let read = read_speeches(path, &SpeechOptions::default()).unwrap();
    assert_eq!(read.speakers.len() + read.left_out, 1378);
    let long = read.speakers.iter().filter(|(_, text)| text.len() >= 1000).count();
    // 634 where a line break counts as two characters.
    assert!((620..=634).contains(&long), "{long}");
    assert!(read.unknown < 20, "{}", read.unknown);
}

#[test]
fn omniglot_has_its_images() {
    let Some(path) = data_file("omniglot/images28-idx3-ubyte.gz") else { return };
    let images = read_idx_images(&path).unwrap();
    assert_eq!((images.rows(), images.width()), (4840, 784));
}
