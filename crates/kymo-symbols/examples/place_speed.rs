//! How long places take to find in a large program: `place_speed PROGRAM EXPR...`.
//!
//! Each expression is resolved twice in a module that was just opened: the first time reads the sections, the second has
//! them. Nothing runs, so pointers cannot be followed.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kymo_symbols::SymbolOptions;
use kymo_symbols::place::{self, Module, ModuleFile, Target};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let program = arguments.next().ok_or("usage: place_speed PROGRAM EXPR...")?;
    let memory = |_: u64, _: &mut [u8]| Err(std::io::Error::other("nothing runs"));
    for text in arguments {
        let path = Path::new(&program);
        let file = Arc::new(ModuleFile::open(path, path, &SymbolOptions::default())?);
        let target = Target { modules: vec![Module { file, bias: 0 }], memory: &memory };
        let request = place::parse(&text)?;
        for round in ["first", "again"] {
            let start = Instant::now();
            let answer = match place::resolve(&request, &target) {
                Ok(watch) => {
                    let kind = watch.type_name.as_deref().unwrap_or("no type");
                    format!("{:#x} {} bytes, {kind}", watch.avma, watch.len_bytes)
                }
                Err(error) => error.to_string(),
            };
            println!("{text:24} {round} {:>9.3} ms  {answer}", start.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(())
}
