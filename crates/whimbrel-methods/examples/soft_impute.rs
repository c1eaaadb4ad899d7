//! A pooled rank-2 Gaussian fit, until its objective is at most a target: the counterpart of
//! `benches/soft_impute.py`, which writes the cells and the target.
//!
//! `cargo run --release -p whimbrel-methods --example soft_impute CELLS.csv`
//!
//! The first line of the file is `rows,columns,rank,lambda,target`; then `row,column,value`.

use std::sync::Arc;
use std::time::Instant;
use whimbrel_core::{Cell, Cells, ClientData, DynMethod, Erased, Error, Result, vector};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{Faults, Federation, Participation, Simulator};
use whimbrel_methods::fedmiss::{BindCells, FedMiss, Server};
use whimbrel_models::lowrank::{Factors, Family, LowRank, Settings};

fn main() -> Result<()> {
    let path = std::env::args().nth(1).ok_or_else(|| Error::config("name the file of cells"))?;
    let text = std::fs::read_to_string(&path).map_err(|e| Error::storage(&path, e))?;
    let numbers = |line: &str| -> Vec<f64> {
        line.split(',').map(|field| field.trim().parse().unwrap_or(f64::NAN)).collect()
    };
    let mut lines = text.lines().map(numbers);
    let head = lines.next().unwrap_or_default();
    let [rows, columns, rank, lambda, target] = head[..] else {
        return Err(Error::storage(&path, "the first line is not rows,columns,rank,lambda,target"));
    };
    let cell =
        |line: Vec<f64>| Cell { row: line[0] as u32, column: line[1] as u32, value: line[2] };
    let observed: Vec<Cell> = lines.map(cell).collect();
    let settings = Settings {
        rank: rank as usize,
        lambda,
        ..Settings::new(rows as usize, columns as usize, Family::Gaussian)
    };
    let labels = |n: f64| (0..n as usize).map(|i| i.to_string()).collect::<Vec<_>>().into();
    let cells = Cells::new(labels(rows), labels(columns), observed.clone(), Vec::new())?;
    let model = LowRank::new(settings)?;
    let method = FedMiss::exact(model.clone(), 100_000);
    let method = Arc::new(Erased(method, BindCells));
    let data = vec![method.bind(&ClientData::Cells(cells))?];
    let federation = Arc::new(Federation::new(vec![String::new()], data));
    let clock = Instant::now();
    let (everyone, keys) = (Participation::Everyone, StageKeys::new(1, 0));
    let mut simulator =
        Simulator::start(method.clone(), federation.clone(), keys, everyone, Faults::default())?;
    let mut rounds = 0;
    while simulator.step()?.is_some() {
        rounds += 1;
        let server = simulator.machine().server().downcast_ref::<Server>();
        let server = server.ok_or_else(|| Error::internal("another method's server"))?;
        let value = objective(&model, &server.factors, &observed, lambda);
        if value <= target {
            let seconds = clock.elapsed().as_secs_f64();
            println!("whimbrel: objective {value:.6} after {rounds} rounds in {seconds:.3} s");
            return Ok(());
        }
    }
    Err(Error::numerical(format!("the target {target} was not reached")))
}

/// `(1/2) sum (y - theta)^2 + (lambda/2)(|U|^2 + |V|^2)`.
fn objective(model: &LowRank, factors: &Factors, cells: &[Cell], lambda: f64) -> f64 {
    let gap = |c: &Cell| c.value - model.theta(factors, c.row as usize, c.column as usize);
    let fit: f64 = cells.iter().map(|cell| gap(cell) * gap(cell)).sum();
    let norms = vector::norm2_squared(&factors.u) + vector::norm2_squared(&factors.v);
    0.5 * (fit + lambda * norms)
}
