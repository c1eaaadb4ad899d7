//! Batches of rows of a Parquet or an Arrow file, read one after another.

use super::{ARROW, PARQUET, UNREAD};
use crate::source::read_full;
use crate::{Error, Result};
use arrow_array::RecordBatch;
use arrow_ipc::convert::fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{Block, root_as_footer};
use arrow_schema::{ArrowError, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Compression;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

/// Rows of a batch of a Parquet file; Arrow files have their own batches.
const BATCH_ROWS: usize = 8192;

/// An open file.
pub(super) struct TableFile {
    pub schema: SchemaRef,
    /// Rows as the file declares them; `None` for Arrow files, which do not.
    pub rows: Option<usize>,
    content: Content,
}

enum Content {
    Parquet(Box<ParquetRecordBatchReaderBuilder<File>>),
    Arrow { file: File, bytes: u64, footer: Vec<u8> },
}

/// The batches of a file, or the reason why the rest cannot be read.
pub(super) type Batches = Box<dyn Iterator<Item = Result<RecordBatch, String>>>;

impl TableFile {
    /// Opens a file and reads its schema.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let storage = |e: std::io::Error| Error::storage(&name, &e);
        let mut file = File::open(path).map_err(storage)?;
        let mut start = [0; 6];
        let read = read_full(&mut file, &mut start).map_err(storage)?;
        let bytes = file.seek(SeekFrom::End(0)).map_err(storage)?;
        file.rewind().map_err(storage)?;
        if start.starts_with(PARQUET) {
            return Self::parquet(file).map_err(|why| damaged(&name, &why));
        }
        if start[..read] == *ARROW {
            return Self::arrow(file, bytes).map_err(|why| damaged(&name, &why));
        }
        if let Some((_, form)) = UNREAD.iter().find(|(bytes, _)| start.starts_with(bytes)) {
            let hint = "write it as Parquet, or as an Arrow file (Feather version 2)";
            return Err(Error::format(&name, format!("this is {form}")).hint(hint));
        }
        let what = "this is neither a Parquet nor an Arrow file";
        Err(Error::format(&name, what).hint("text is read with source = \"csv\""))
    }

    fn parquet(file: File) -> Result<Self, String> {
        let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| e.to_string())?;
        let rows = builder.metadata().file_metadata().num_rows();
        let rows = usize::try_from(rows).map_err(|_| format!("it declares {rows} rows"))?;
        let schema = builder.schema().clone();
        Ok(Self { schema, rows: Some(rows), content: Content::Parquet(Box::new(builder)) })
    }

    fn arrow(mut file: File, bytes: u64) -> Result<Self, String> {
        let mut end = [0; 10];
        let tail = |e: std::io::Error| e.to_string();
        let from = bytes.checked_sub(10).ok_or("it ends too early")?;
        file.seek(SeekFrom::Start(from)).map_err(tail)?;
        file.read_exact(&mut end).map_err(tail)?;
        let length = read_footer_length(end).map_err(|e| e.to_string())?;
        let start = from.checked_sub(length as u64).ok_or("its footer is longer than the file")?;
        let footer = piece(&mut file, start, length)?;
        let schema = {
            let root = root_as_footer(&footer).map_err(|e| e.to_string())?;
            fb_to_schema(root.schema().ok_or("it has no schema")?)
        };
        let schema = Arc::new(schema);
        Ok(Self { schema, rows: None, content: Content::Arrow { file, bytes, footer } })
    }

    /// Refuses these columns if one is compressed in a way that is not read.
    pub(super) fn check_compression(&self, name: &str, columns: &[usize]) -> Result<()> {
        let Content::Parquet(builder) = &self.content else { return Ok(()) };
        let schema = builder.parquet_schema();
        for group in builder.metadata().row_groups() {
            for (leaf, chunk) in group.columns().iter().enumerate() {
                let method = match chunk.compression() {
                    Compression::BROTLI(_) => "Brotli",
                    Compression::LZO => "LZO",
                    _ => continue,
                };
                if columns.contains(&schema.get_column_root_idx(leaf)) {
                    let what =
                        format!("column {} is compressed with {method}", chunk.column_path());
                    let hint = "write the file with Snappy, Zstandard, LZ4 or gzip";
                    return Err(Error::format(name, what).hint(hint));
                }
            }
        }
        Ok(())
    }

    /// The batches with these columns, in ascending order.
    pub(super) fn batches(self, columns: &[usize]) -> Result<Batches, String> {
        match self.content {
            Content::Parquet(builder) => {
                let mask = ProjectionMask::roots(builder.parquet_schema(), columns.iter().copied());
                let reader = builder.with_projection(mask).with_batch_size(BATCH_ROWS).build();
                let reader = reader.map_err(|e| e.to_string())?;
                Ok(Box::new(reader.map(|batch| batch.map_err(|e| e.to_string()))))
            }
            Content::Arrow { mut file, bytes, footer } => {
                let root = root_as_footer(&footer).map_err(|e| e.to_string())?;
                let mut decoder =
                    FileDecoder::new(self.schema, root.version()).with_projection(columns.to_vec());
                for block in root.dictionaries().iter().flatten() {
                    let data = block_bytes(&mut file, bytes, block)?;
                    let read = decoder.read_dictionary(block, &data.into());
                    read.map_err(|e: ArrowError| e.to_string())?;
                }
                let blocks: Vec<Block> = root.recordBatches().iter().flatten().copied().collect();
                Ok(Box::new(blocks.into_iter().filter_map(move |block| {
                    let data = match block_bytes(&mut file, bytes, &block) {
                        Ok(data) => data,
                        Err(why) => return Some(Err(why)),
                    };
                    let read = decoder.read_record_batch(&block, &data.into());
                    read.map_err(|e| e.to_string()).transpose()
                })))
            }
        }
    }
}

/// The bytes of a block, which must lie within the file.
fn block_bytes(file: &mut File, bytes: u64, block: &Block) -> Result<Vec<u8>, String> {
    let outside = || format!("a block lies outside the {bytes} bytes of the file");
    let [start, meta, body] =
        [block.offset(), block.metaDataLength().into(), block.bodyLength()].map(u64::try_from);
    let (Ok(start), Ok(meta), Ok(body)) = (start, meta, body) else { return Err(outside()) };
    let length = meta.checked_add(body).ok_or_else(outside)?;
    if start.checked_add(length).is_none_or(|end| end > bytes) {
        return Err(outside());
    }
    piece(file, start, usize::try_from(length).map_err(|_| outside())?)
}

fn piece(file: &mut File, start: u64, length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; length];
    file.seek(SeekFrom::Start(start)).map_err(|e| e.to_string())?;
    file.read_exact(&mut bytes).map_err(|e| e.to_string())?;
    Ok(bytes)
}

/// A file whose content contradicts itself.
pub(super) fn damaged(name: &str, why: &str) -> Error {
    let why: String = why.chars().flat_map(char::escape_debug).take(300).collect();
    Error::format(name, format!("the file is damaged or cut off: {why}"))
        .hint("copy or export it again")
}
