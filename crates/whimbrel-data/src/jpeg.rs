//! JPEG images: a folder for each class, or all images in one file with a list of offsets.

use crate::hash::sorted_entries;
use crate::source::{ReadHashes, Source};
use crate::{Error, LabelledImages, Result, read_idx_numbers};
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use whimbrel_core::{Inputs, Samples, Targets};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// Reads the `.jpg` and `.jpeg` files in the subfolders of a folder, which are the classes in the order
/// of their names.
pub fn read_jpeg_folder(folder: impl AsRef<Path>) -> Result<LabelledImages> {
    let folder = folder.as_ref();
    let (mut files, mut of, mut classes) = (Vec::new(), Vec::new(), Vec::new());
    for class in sorted_entries(folder)?.into_iter().filter(|path| path.is_dir()) {
        let images = sorted_entries(&class)?;
        let images: Vec<PathBuf> = images.into_iter().filter(|path| is_jpeg(path)).collect();
        of.resize(of.len() + images.len(), classes.len() as u16);
        classes.push(class.file_name().unwrap_or_default().to_string_lossy().into_owned());
        files.extend(images);
    }
    if files.is_empty() {
        let what = "the folder has no folder of .jpg files for each class";
        return Err(Error::format(&folder.display().to_string(), what));
    }
    let hashes = ReadHashes::in_use();
    let images = files.par_iter().map(|file| {
        let name = file.display().to_string();
        let bytes = hashes.during(|| Source::File(file).read())?;
        Ok((decode(&bytes).map_err(|what| Error::format(&name, what))?, name))
    });
    let count = classes.len();
    Ok(LabelledImages { samples: gather(images, of, count)?, classes, coarse: Vec::new() })
}

/// Reads concatenated images, plain or gzipped: image `i` lies between the offsets `i` and `i + 1`
/// (32 bits, little-endian), and has label `i` of an idx file.
pub fn read_jpegs(
    path: impl AsRef<Path>,
    offsets: impl AsRef<Path>,
    labels: impl AsRef<Path>,
) -> Result<LabelledImages> {
    let (path, offsets) = (path.as_ref(), offsets.as_ref());
    let name = path.display().to_string();
    let bytes = Source::File(path).read()?;
    let bounds = bounds(offsets, bytes.len(), &name)?;
    let labels = read_idx_numbers(labels.as_ref(), bounds.len() - 1, 0)?;
    let mut of: Vec<f64> = labels.into_iter().map(f64::from).collect();
    let classes = crate::number_classes(&mut of)?;
    let images = bounds.par_windows(2).enumerate().map(|(i, bounds)| {
        let place = format!("{name}: image {}", i + 1);
        let image = decode(&bytes[bounds[0]..bounds[1]]);
        Ok((image.map_err(|what| Error::format(&place, what))?, place))
    });
    let of = of.into_iter().map(|class| class as u16).collect();
    let samples = gather(images, of, classes.len())?;
    let classes = classes.into_iter().map(|class| class.to_string()).collect();
    Ok(LabelledImages { samples, classes, coarse: Vec::new() })
}

/// The images' offsets, which increase to the file's length.
fn bounds(path: &Path, end: usize, images: &str) -> Result<Vec<usize>> {
    let name = path.display().to_string();
    let bytes = Source::File(path).read()?;
    let (words, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() || words.len() < 2 {
        let what = format!("{} bytes are not a list of 4-byte offsets", bytes.len());
        return Err(Error::format(&name, what));
    }
    let bounds: Vec<usize> = words.iter().map(|word| u32::from_le_bytes(*word) as usize).collect();
    if let Some(at) = bounds.windows(2).position(|pair| pair[0] >= pair[1] || pair[1] > end) {
        let what = format!(
            "offsets {} to {} of image {} do not lie in the {end} bytes of {images}",
            bounds[at],
            bounds[at + 1],
            at + 1
        );
        return Err(Error::format(&name, what));
    }
    Ok(bounds)
}

/// An image as three planes.
struct Image {
    width: usize,
    height: usize,
    planes: Vec<u8>,
}

fn decode(bytes: &[u8]) -> std::result::Result<Image, String> {
    let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let refuse = |e: zune_jpeg::errors::DecodeErrors| format!("this is not a JPEG image: {e:?}");
    let pixels = decoder.decode().map_err(refuse)?;
    let (width, height) = decoder.dimensions().ok_or("the image has no size")?;
    if pixels.len() != 3 * width * height {
        return Err(format!("{} bytes for {width} x {height} pixels", pixels.len()));
    }
    let planes = (0..3).flat_map(|c| pixels.iter().skip(c).step_by(3)).copied().collect();
    Ok(Image { width, height, planes })
}

/// Images of one size as samples. Each comes with its place, for messages.
fn gather(
    images: impl IndexedParallelIterator<Item = Result<(Image, String)>>,
    of: Vec<u16>,
    count: usize,
) -> Result<Samples> {
    // The first failure in the order of the images, for any number of threads.
    let images: Vec<Result<(Image, String)>> = images.collect();
    let images: Vec<(Image, String)> = images.into_iter().collect::<Result<_>>()?;
    let (width, height) = images.first().map_or((0, 0), |(first, _)| (first.width, first.height));
    let mut bytes = Vec::with_capacity(images.len() * 3 * width * height);
    for (image, place) in &images {
        if (image.width, image.height) != (width, height) {
            let what = format!(
                "the image has {} x {} pixels, but the first has {width} x {height}",
                image.width, image.height
            );
            return Err(Error::format(place, what).hint("all images must have one size"));
        }
        bytes.extend_from_slice(&image.planes);
    }
    let targets = Targets::Classes { of, count };
    Ok(Samples::new(vec![3, height, width], Inputs::Bytes(bytes), targets)?)
}

fn is_jpeg(path: &Path) -> bool {
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    ending == "jpg" || ending == "jpeg"
}
