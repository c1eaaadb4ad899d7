//! Columns of Arrow arrays as numbers or text.

use crate::calendar;
use crate::dataset::Kind;
use crate::number::parse_number;
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrowPrimitiveType, PrimitiveArray};
use arrow_schema::{DataType, TimeUnit};
use std::borrow::Cow;

/// The kind of a column; `None` for columns that may be of either kind, since all their cells are
/// missing.
pub(super) fn kind(data_type: &DataType) -> Result<Option<Kind>, &'static str> {
    use DataType::*;
    Ok(Some(match data_type {
        Null => return Ok(None),
        Boolean | Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 => Kind::Number,
        Float16 | Float32 | Float64 => Kind::Number,
        Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..) => Kind::Number,
        Utf8 | LargeUtf8 | Utf8View => Kind::Text,
        Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..) => Kind::Text,
        Dictionary(_, values) => match &**values {
            Dictionary(..) => return Err("dictionaries of dictionaries"),
            values => {
                kind(values)?;
                Kind::Text
            }
        },
        List(_) | LargeList(_) | ListView(_) | LargeListView(_) | FixedSizeList(..) => {
            return Err("lists");
        }
        Struct(_) | Union(..) => return Err("records of several values"),
        Map(..) => return Err("maps"),
        Binary | LargeBinary | BinaryView | FixedSizeBinary(_) => return Err("bytes"),
        Duration(_) | Interval(_) => return Err("durations"),
        RunEndEncoded(..) => return Err("run-end encoded values"),
    }))
}

type Number<'a> = Box<dyn Fn(usize) -> f64 + 'a>;
type Text<'a> = Box<dyn Fn(usize) -> Cow<'a, str> + 'a>;

/// The numbers of a column by row. Integers and decimals are rounded to the nearest `f64`.
pub(super) fn numbers(array: &dyn Array) -> Option<Number<'_>> {
    use DataType::*;
    Some(match array.data_type() {
        Boolean => {
            let values = array.as_boolean();
            Box::new(|row| f64::from(u8::from(values.value(row))))
        }
        Int8 => primitive::<Int8Type>(array, f64::from),
        Int16 => primitive::<Int16Type>(array, f64::from),
        Int32 => primitive::<Int32Type>(array, f64::from),
        Int64 => primitive::<Int64Type>(array, |x| x as f64),
        UInt8 => primitive::<UInt8Type>(array, f64::from),
        UInt16 => primitive::<UInt16Type>(array, f64::from),
        UInt32 => primitive::<UInt32Type>(array, f64::from),
        UInt64 => primitive::<UInt64Type>(array, |x| x as f64),
        Float16 => primitive::<Float16Type>(array, |x| x.to_f64()),
        Float32 => primitive::<Float32Type>(array, f64::from),
        Float64 => primitive::<Float64Type>(array, |x| x),
        Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..) => {
            let text = texts(array)?;
            Box::new(move |row| parse_number(text(row).as_bytes()).unwrap_or(f64::NAN))
        }
        _ => return None,
    })
}

fn primitive<T: ArrowPrimitiveType>(array: &dyn Array, as_f64: fn(T::Native) -> f64) -> Number<'_> {
    let values = array.as_primitive::<T>();
    Box::new(move |row| as_f64(values.value(row)))
}

/// The cells of a column by row as text; integers and decimals have all their digits.
pub(super) fn texts(array: &dyn Array) -> Option<Text<'_>> {
    use DataType::*;
    Some(match array.data_type() {
        Utf8 => {
            let values = array.as_string::<i32>();
            Box::new(|row| values.value(row).into())
        }
        LargeUtf8 => {
            let values = array.as_string::<i64>();
            Box::new(|row| values.value(row).into())
        }
        Utf8View => {
            let values = array.as_string_view();
            Box::new(|row| values.value(row).into())
        }
        Boolean => {
            let values = array.as_boolean();
            Box::new(|row| if values.value(row) { "1" } else { "0" }.into())
        }
        Int64 => written::<Int64Type>(array, |x| x.to_string()),
        UInt64 => written::<UInt64Type>(array, |x| x.to_string()),
        Float32 => written::<Float32Type>(array, |x| x.to_string()),
        Decimal32(..) => decimal::<Decimal32Type>(array),
        Decimal64(..) => decimal::<Decimal64Type>(array),
        Decimal128(..) => decimal::<Decimal128Type>(array),
        Decimal256(..) => decimal::<Decimal256Type>(array),
        Date32 => written::<Date32Type>(array, |days| calendar::date(days.into())),
        Date64 => written::<Date64Type>(array, |ms| calendar::date(ms.div_euclid(86_400_000))),
        Time32(TimeUnit::Second) => {
            written::<Time32SecondType>(array, |s| calendar::time(i64::from(s) * 1_000_000_000))
        }
        Time32(_) => {
            written::<Time32MillisecondType>(array, |ms| calendar::time(i64::from(ms) * 1_000_000))
        }
        Time64(TimeUnit::Microsecond) => {
            written::<Time64MicrosecondType>(array, |us| calendar::time(us.saturating_mul(1000)))
        }
        Time64(_) => written::<Time64NanosecondType>(array, calendar::time),
        Timestamp(unit, zone) => instants(array, *unit, zone.is_some()),
        Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let values = dictionary.values();
            if values.is_empty() {
                // All cells are missing.
                return Some(Box::new(|_| "".into()));
            }
            let (keys, text) = (dictionary.normalized_keys(), texts(values)?);
            Box::new(move |row| text(keys[row]))
        }
        _ => {
            let number = numbers(array)?;
            Box::new(move |row| number(row).to_string().into())
        }
    })
}

fn written<T: ArrowPrimitiveType>(array: &dyn Array, text: fn(T::Native) -> String) -> Text<'_> {
    let values = array.as_primitive::<T>();
    Box::new(move |row| text(values.value(row)).into())
}

fn decimal<T: DecimalType>(array: &dyn Array) -> Text<'_> {
    let values: &PrimitiveArray<T> = array.as_primitive::<T>();
    let (precision, scale) = (values.precision(), values.scale());
    Box::new(move |row| T::format_decimal(values.value(row), precision, scale).into())
}

fn instants(array: &dyn Array, unit: TimeUnit, utc: bool) -> Text<'_> {
    fn of<T: ArrowPrimitiveType<Native = i64>>(
        array: &dyn Array,
        nanos: i128,
        utc: bool,
    ) -> Text<'_> {
        let values = array.as_primitive::<T>();
        Box::new(move |row| calendar::timestamp(i128::from(values.value(row)) * nanos, utc).into())
    }
    match unit {
        TimeUnit::Second => of::<TimestampSecondType>(array, 1_000_000_000, utc),
        TimeUnit::Millisecond => of::<TimestampMillisecondType>(array, 1_000_000, utc),
        TimeUnit::Microsecond => of::<TimestampMicrosecondType>(array, 1000, utc),
        TimeUnit::Nanosecond => of::<TimestampNanosecondType>(array, 1, utc),
    }
}
