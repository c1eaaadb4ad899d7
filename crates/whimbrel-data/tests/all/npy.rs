//! Reading NumPy arrays.

use proptest::prelude::*;
use whimbrel_data::{Dataset, Error, Source, read_npy};

/// The bytes `numpy.save` writes: the header padded to 64 bytes, then the payload.
fn npy(version: u8, dict: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend([version, 0]);
    let lead = if version == 1 { 10 } else { 12 };
    let padded = (lead + dict.len() + 1).next_multiple_of(64) - lead;
    match version {
        1 => bytes.extend((padded as u16).to_le_bytes()),
        _ => bytes.extend((padded as u32).to_le_bytes()),
    }
    bytes.extend(format!("{dict:<0$}\n", padded - 1).bytes());
    bytes.extend(payload);
    bytes
}

fn dict(descr: &str, fortran: &str, shape: &str) -> String {
    format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}")
}

fn values(data: &Dataset) -> Vec<f64> {
    let all: Vec<usize> = (0..data.columns().len()).collect();
    data.table(&all).unwrap().values
}

fn read(bytes: &[u8]) -> Result<Dataset, Error> {
    read_npy(Source::bytes("x.npy", bytes))
}

#[test]
fn the_layout_numpy_writes_is_read() {
    // The layout numpy.save gives numpy.array([[1.5, -2.0], [3.0, 0.25], [0.0, 7.0]]).
    let mut golden =
        b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f8', 'fortran_order': False, 'shape': (3, 2), }"
            .to_vec();
    golden.resize(127, b' ');
    golden.push(b'\n');
    golden.extend([1.5f64, -2.0, 3.0, 0.25, 0.0, 7.0].iter().flat_map(|x| x.to_le_bytes()));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    std::fs::write(&path, golden).unwrap();
    let data = read_npy(&path).unwrap();
    assert_eq!((data.rows(), data.columns()[1].name.as_str()), (3, "c2"));
    assert_eq!(values(&data), [1.5, -2.0, 3.0, 0.25, 0.0, 7.0]);
}

#[test]
fn every_version_order_and_element_type_is_read() {
    let expected = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let by_column = [1.0, 4.0, 2.0, 5.0, 3.0, 6.0];
    let float64 = |x: &[f64]| x.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    for version in [1, 2, 3] {
        let rows = npy(version, &dict("<f8", "False", "(2, 3)"), &float64(&expected));
        assert_eq!(values(&read(&rows).unwrap()), expected);
        let columns = npy(version, &dict("<f8", "True", "(2, 3)"), &float64(&by_column));
        assert_eq!(values(&read(&columns).unwrap()), expected);
    }
    macro_rules! element {
        ($descr:literal, $type:ty) => {
            let payload: Vec<u8> =
                expected.iter().flat_map(|&x| (x as $type).to_le_bytes()).collect();
            let bytes = npy(1, &dict($descr, "False", "(6, 1)"), &payload);
            assert_eq!(values(&read(&bytes).unwrap()), expected, $descr);
        };
    }
    element!("<f4", f32);
    element!("<i8", i64);
    element!("<i4", i32);
    element!("<i2", i16);
    element!("|i1", i8);
    element!("<u8", u64);
    element!("<u4", u32);
    element!("<u2", u16);
    element!("|u1", u8);
    let negative = npy(1, &dict("<i2", "False", "(1, 1)"), &(-7i16).to_le_bytes());
    assert_eq!(values(&read(&negative).unwrap()), [-7.0]);
    let truth = npy(1, &dict("|b1", "False", "(2, 1)"), &[1, 0]);
    assert_eq!(values(&read(&truth).unwrap()), [1.0, 0.0]);
}

#[test]
fn gaps_and_infinities_are_named_by_row() {
    let numbers = [1.0, f64::NAN, 3.0, f64::NEG_INFINITY];
    let payload: Vec<u8> = numbers.iter().flat_map(|x: &f64| x.to_le_bytes()).collect();
    let data = read(&npy(1, &dict("<f8", "False", "(2, 2)"), &payload)).unwrap();
    assert_eq!(
        data.table(&[0, 1]).unwrap_err().to_string(),
        "x.npy: 2 rows cannot be used
  row 1, column \"c2\": the value is missing
  row 2, column \"c2\": \"-inf\" is not a finite number
hint: fill these values, or remove these rows"
    );
}

#[test]
fn unsupported_arrays_are_refused_with_the_reason() {
    let array =
        |version, descr: &str, shape: &str| npy(version, &dict(descr, "False", shape), &[0; 8]);
    let structured = "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,), }";
    let convert = "\nhint: convert it first: numpy.save(file, array.astype('<f8'))";
    let cases = [
        (b"abc".to_vec(), "this is not a .npy file: it is too short to be one", ""),
        (
            b"PK\x03\x04 and so on".to_vec(),
            "this is not a .npy file: it does not begin with NumPy's mark",
            "\nhint: write it with numpy.save; an .npz archive must be unpacked first",
        ),
        (
            array(1, "|O", "(1,)"),
            "this is an array of Python objects, which is never loaded",
            convert,
        ),
        (array(1, ">f8", "(1,)"), "the numbers are big-endian (>f8)", convert),
        (array(1, "<c16", "(1,)"), "elements of type \"<c16\" are not supported", convert),
        (
            array(1, "<f8", "(2, 3)"),
            "the header promises 2 x 3 numbers (48 bytes), but 8 bytes follow",
            "",
        ),
        (
            array(1, "<f8", "(9000000000000000000, 9)"),
            "the header promises 9000000000000000000 x 9 numbers (more bytes than can be \
             addressed), but 8 bytes follow",
            "",
        ),
        (
            array(1, "<f8", "(1, 1, 1)"),
            "the array has 3 dimensions",
            "\nhint: save it as rows by columns",
        ),
        (npy(1, &dict("<f8", "False", "(0, 3)"), &[]), "the array is empty", ""),
        (array(9, "<f8", "(1,)"), "format 9.0 is not supported; 1.0, 2.0 and 3.0 are", ""),
        (
            npy(1, structured, &[0; 8]),
            "this is a structured array, which has no single type of number",
            "\nhint: save a plain two-dimensional array",
        ),
        (npy(1, "{}", &[]), "the header has no readable \"descr\"", ""),
    ];
    for (bytes, what, hint) in cases {
        assert_eq!(read(&bytes).unwrap_err().to_string(), format!("x.npy: {what}{hint}"));
    }
}

proptest! {
    #[test]
    fn damaged_files_never_panic(
        cut in 0usize..200,
        flips in prop::collection::vec((0usize..200, any::<u8>()), 0..6),
        version in 0u8..5,
    ) {
        let mut bytes = npy(version, &dict("<f8", "True", "(3, 3)"), &[7; 72]);
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(bytes.len().saturating_sub(cut));
        let _ = read(&bytes);
    }

    #[test]
    fn no_header_makes_the_reader_panic(text in "[ '{}():,a-z0-9<|]{0,120}") {
        let _ = read(&npy(1, &text, &[0; 16]));
        let _ = read(&npy(2, &dict("<f8", "False", &text), &[0; 16]));
        let _ = read(&npy(2, &dict(&text, "False", "(2,)"), &[0; 16]));
    }
}
