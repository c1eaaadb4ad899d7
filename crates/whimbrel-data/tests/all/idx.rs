//! Reading the files of MNIST.

use crate::gzipped;
use proptest::prelude::*;
use whimbrel_data::{Error, Images, Source, by_number, is_idx, read_idx_images, read_idx_numbers};

/// Type, lengths and values as the format lays them out.
fn idx(kind: u8, shape: &[u32], values: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, kind, shape.len() as u8];
    shape.iter().for_each(|n| bytes.extend(n.to_be_bytes()));
    bytes.extend(values);
    bytes
}

fn read(bytes: &[u8]) -> Result<Images, Error> {
    read_idx_images(Source::bytes("images", bytes))
}

#[test]
fn images_become_rows_in_the_order_of_their_bytes() {
    let plain = idx(8, &[2, 2, 3], &[0, 51, 102, 153, 204, 255, 1, 2, 3, 4, 5, 6]);
    for bytes in [&plain, &gzipped(&plain)] {
        let images = read(bytes).unwrap();
        assert_eq!((images.rows(), images.width()), (2, 6));
        let table = images.table([1, 0].into_iter(), 255.0).unwrap();
        assert_eq!(table.columns[..], ["p0", "p1", "p2", "p3", "p4", "p5"]);
        assert_eq!(table.row(1), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        assert_eq!(images.table(0..2, 1.0).unwrap().row(1), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }
}

#[test]
fn numbers_are_a_list_or_a_column() {
    let labels = idx(8, &[4], &[7, 0, 7, 9]);
    assert_eq!(read_idx_numbers(Source::bytes("labels", &labels), 4, 0).unwrap(), [7, 0, 7, 9]);
    let table = idx(12, &[2, 2], &[0, 0, 0, 1, 0, 0, 1, 2, 255, 255, 255, 255, 0, 1, 0, 0]);
    let column = |n| read_idx_numbers(Source::bytes("writers", &table), 2, n);
    assert_eq!(column(0).unwrap(), [1, -1]);
    assert_eq!(column(1).unwrap(), [258, 65536]);
    assert!(column(2).unwrap_err().to_string().contains("2 numbers for each image"));
    let short = read_idx_numbers(Source::bytes("labels", &labels), 5, 0).unwrap_err().to_string();
    assert_eq!(short, "labels: it has numbers for 4 images, but there are 5");
    let clients = by_number(&[7, 12, 7], "writer");
    assert_eq!((clients[0].name.as_str(), &clients[0].rows[..]), ("writer-07", &[0, 2][..]));
    assert_eq!(clients[1].name, "writer-12");
}

#[test]
fn files_without_images_are_refused() {
    let lie = idx(8, &[u32::MAX, u32::MAX, u32::MAX], &[1, 2, 3]);
    let cases: [(Vec<u8>, &str); 9] = [
        (b"PK".to_vec(), "the file ends inside its header"),
        (b"\x89PNG and so on".to_vec(), "does not begin with two zero bytes"),
        (idx(0x0D, &[1, 1, 1], &[0; 4]), "values of type 0x0d in 3 dimensions are not supported"),
        (idx(8, &[3], &[1, 2, 3]), "it holds 3 bytes, not images"),
        (idx(12, &[1, 1], &[0; 4]), "it holds 1 x 1 integers, not images"),
        (idx(8, &[0, 28, 28], &[]), "it holds no images"),
        (idx(8, &[2, 2, 2], &[0; 7]), "promises 8 bytes of values, but 7 follow"),
        (idx(8, &[2, 2, 2], &[0; 9]), "promises 8 bytes of values, but more follow"),
        (lie, "follow"),
    ];
    for (bytes, right) in cases {
        let error = read(&bytes).unwrap_err().to_string();
        assert!(error.contains(right) || error.contains("can be addressed"), "{error}");
    }
    let huge = gzipped(&idx(8, &[4_000_000_000, 1000, 1000], &[0; 100]));
    assert!(read(&huge).unwrap_err().to_string().contains("but 100 follow"));
}

proptest! {
    #[test]
    fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = read(&bytes);
        let _ = read(&[&[0, 0, 8, 3][..], &bytes].concat());
        let _ = read_idx_numbers(Source::bytes("x", &[&[0, 0, 12, 2][..], &bytes].concat()), 1, 0);
    }
}

#[test]
fn mnist_as_it_comes() {
    let file = |name: &str| whimbrel_testkit::data_file(&format!("mnist/{name}"));
    let (Some(path), Some(labels), Some(writers)) = (
        file("t10k-images-idx3-ubyte.gz"),
        file("t10k-labels-idx1-ubyte.gz"),
        file("qmnist-train-labels-idx2-int.gz"),
    ) else {
        return;
    };
    assert!(is_idx(&path));
    let images = read_idx_images(&path).unwrap();
    assert_eq!((images.rows(), images.width()), (10_000, 784));
    let labels = read_idx_numbers(&labels, 10_000, 0).unwrap();
    assert_eq!(labels[..5], [7, 2, 1, 0, 4]);
    let writers = read_idx_numbers(&writers, 60_000, 2).unwrap();
    assert_eq!(by_number(&writers, "writer").len(), 539);
}
