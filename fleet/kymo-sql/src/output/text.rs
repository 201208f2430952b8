//! A table for people: numbers on the right, two places of fractions, columns as wide as the first
//! rows need.

use std::io::Write;

use datafusion::arrow::array::{Array as _, ArrayRef, AsArray as _};
use datafusion::arrow::datatypes::{DataType, Float64Type, SchemaRef};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};

use super::{BatchWriter, failed};

/// Rows that decide how wide the columns are. Later ones may stick out.
const MEASURED_ROWS: usize = 1000;
/// The widest that a column becomes in front of others; the last one is never cut or filled.
const MOST_WIDTH: usize = 60;

pub(super) struct TableWriter<'a> {
    names: Vec<String>,
    is_number: Vec<bool>,
    /// Rows that wait for the widths; None once these are known.
    waiting: Option<Vec<Vec<String>>>,
    widths: Vec<usize>,
    out: &'a mut (dyn Write + Send),
}

impl<'a> TableWriter<'a> {
    pub(super) fn new(schema: &SchemaRef, out: &'a mut (dyn Write + Send)) -> TableWriter<'a> {
        TableWriter {
            names: schema.fields().iter().map(|field| field.name().clone()).collect(),
            is_number: schema.fields().iter().map(|field| field.data_type().is_numeric()).collect(),
            waiting: Some(Vec::new()),
            widths: Vec::new(),
            out,
        }
    }

    /// Decides the widths and writes the rows that wait.
    fn start(&mut self) -> anyhow::Result<()> {
        let Some(rows) = self.waiting.take() else { return Ok(()) };
        self.widths = self.names.iter().map(|name| name.chars().count()).collect();
        for row in &rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count()).min(MOST_WIDTH);
            }
        }
        let names = self.names.clone();
        self.line("# ", &names)?;
        rows.iter().try_for_each(|row| self.line("  ", row))
    }

    fn line(&mut self, start: &str, cells: &[String]) -> anyhow::Result<()> {
        let mut text = start.to_owned();
        for (index, cell) in cells.iter().enumerate() {
            if index > 0 {
                text.push_str("  ");
            }
            let fill = self.widths[index].saturating_sub(cell.chars().count());
            let is_last = index + 1 == cells.len();
            if self.is_number[index] {
                text.extend(std::iter::repeat_n(' ', fill));
            }
            text.push_str(cell);
            if !self.is_number[index] && !is_last {
                text.extend(std::iter::repeat_n(' ', fill));
            }
        }
        failed(writeln!(self.out, "{text}"))
    }
}

/// The cells of a column. Control characters become spaces, so that a row is a line.
fn cells(column: &ArrayRef) -> anyhow::Result<Vec<String>> {
    if column.data_type() == &DataType::Float64 {
        let numbers = column.as_primitive::<Float64Type>();
        return Ok(numbers
            .iter()
            .map(|number| number.map_or("-".to_owned(), |n| format!("{n:.2}")))
            .collect());
    }
    let options = FormatOptions::default().with_null("-");
    let formatter = failed(ArrayFormatter::try_new(column, &options))?;
    let clean = |text: String| text.replace(|c: char| c.is_control(), " ");
    Ok((0..column.len()).map(|row| clean(formatter.value(row).to_string())).collect())
}

impl BatchWriter for TableWriter<'_> {
    fn write(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        let columns = batch.columns().iter().map(cells).collect::<anyhow::Result<Vec<_>>>()?;
        for row in 0..batch.num_rows() {
            let row: Vec<String> = columns.iter().map(|column| column[row].clone()).collect();
            match &mut self.waiting {
                Some(rows) => rows.push(row),
                None => self.line("  ", &row)?,
            }
        }
        match &self.waiting {
            Some(rows) if rows.len() >= MEASURED_ROWS => self.start(),
            _ => Ok(()),
        }
    }

    fn finish(mut self: Box<Self>) -> anyhow::Result<()> {
        self.start()?;
        failed(self.out.flush())
    }
}
