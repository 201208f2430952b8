//! From an expression to an address: names through symbols and debug information, steps through types.

use super::error::{Candidate, ResolveError};
use super::module::{Module, Target};
use super::near;
use super::request::{Access, Expr, Request};
use super::symbol::{Found, Kind};
use super::value::ValueKind;
use super::watch::{SymbolAt, Watch};

/// Finds the place that a request means in a target, now: pointers are followed through the target's memory.
///
/// Does not block but for reading files and memory. Nothing is armed.
///
/// # Errors
/// [`ResolveError`]: one sentence that says what is wrong and what to do.
pub fn resolve(request: &Request, target: &Target<'_>) -> Result<Watch, ResolveError> {
    let mut resolver = Resolver { target, followed: false, warnings: Vec::new() };
    let spot = resolver.spot(&request.tree)?;
    resolver.finish(request, spot)
}

/// A place on the way.
#[derive(Clone, Debug)]
pub(super) struct Spot<'t> {
    avma: u64,
    module: Option<&'t Module>,
    /// Bytes of the whole object, where known.
    size: Option<u64>,
    is_code: bool,
}

struct Resolver<'t, 'm> {
    target: &'t Target<'m>,
    followed: bool,
    warnings: Vec<String>,
}

impl<'t> Resolver<'t, '_> {
    fn spot(&mut self, tree: &Expr) -> Result<Spot<'t>, ResolveError> {
        match tree {
            Expr::Address(avma) => Ok(Spot { avma: *avma, module: None, size: None, is_code: false }),
            Expr::Name { file, path } => self.name(file.as_deref(), path),
            Expr::Offset(inner, bytes) => {
                let spot = self.spot(inner)?;
                Ok(Spot { avma: spot.avma.wrapping_add_signed(*bytes), size: None, ..spot })
            }
            Expr::Follow(inner) => {
                let spot = self.spot(inner)?;
                self.follow(&spot, &inner.to_string())
            }
            Expr::Field(inner, name) => self.no_types(inner, &format!(".{name}")),
            Expr::Arrow(inner, name) => self.no_types(inner, &format!("->{name}")),
            Expr::Index(inner, index) => self.no_types(inner, &format!("[{index}]")),
        }
    }

    fn no_types(&mut self, inner: &Expr, wanted: &str) -> Result<Spot<'t>, ResolveError> {
        let spot = self.spot(inner)?;
        let module = spot.module.map_or_else(|| "it".to_owned(), |module| module.file.short_name());
        Err(ResolveError::NoDwarf { name: inner.to_string(), wanted: wanted.to_owned(), module })
    }

    /// Where the pointer at a place points.
    fn follow(&mut self, spot: &Spot<'t>, of: &str) -> Result<Spot<'t>, ResolveError> {
        let mut bytes = [0u8; 8];
        (self.target.memory)(spot.avma, &mut bytes).map_err(|source| ResolveError::Memory {
            of: of.to_owned(),
            avma: spot.avma,
            len_bytes: 8,
            source,
        })?;
        let avma = u64::from_le_bytes(bytes);
        if avma == 0 {
            return Err(ResolveError::NullPointer { of: of.to_owned() });
        }
        self.followed = true;
        Ok(Spot { avma, module: None, size: None, is_code: false })
    }

    fn name(&mut self, _file: Option<&str>, path: &str) -> Result<Spot<'t>, ResolveError> {
        for module in &self.target.modules {
            let mut found = module.file.symbols().named(path);
            // A global symbol hides the local ones of other files.
            if found.len() > 1 && found.iter().filter(|symbol| symbol.global).count() == 1 {
                found.retain(|symbol| symbol.global);
            }
            match found.as_slice() {
                [] => continue,
                [one] if one.kind == Kind::ThreadLocal => {
                    return Err(ResolveError::ThreadLocal { name: path.to_owned() });
                }
                [one] => return Ok(spot_of(module, one)),
                several => {
                    let candidate = |symbol: &Found| Candidate {
                        path: symbol.name.clone(),
                        file: None,
                        line: None,
                        avma: symbol.svma.wrapping_add(module.bias),
                    };
                    let candidates = several.iter().map(candidate).collect();
                    return Err(ResolveError::Ambiguous { name: path.to_owned(), candidates });
                }
            }
        }
        Err(self.not_found(path))
    }

    fn not_found(&self, path: &str) -> ResolveError {
        let modules = &self.target.modules;
        let searched = match modules.as_slice() {
            [] => "no module at all".to_owned(),
            [one] => one.file.short_name(),
            [first, rest @ ..] => format!("{} and {} libraries", first.file.short_name(), rest.len()),
        };
        let names: Vec<String> =
            modules.iter().take(1).flat_map(|module| module.file.symbols().names(true)).collect();
        let mut near = near::nearest(path, names.iter().map(String::as_str));
        if near.is_empty() {
            let names: Vec<String> =
                modules.iter().skip(1).flat_map(|module| module.file.symbols().names(true)).collect();
            near = near::nearest(path, names.iter().map(String::as_str));
        }
        let stripped = modules.first().filter(|module| module.file.symbols().is_empty());
        let mut hint = match stripped {
            Some(module) => {
                format!("; {} has no symbols (stripped?): give an address", module.file.short_name())
            }
            None => String::new(),
        };
        if near.is_empty() && path.len() >= 6 && path.bytes().all(|c| c.is_ascii_hexdigit()) {
            hint += &format!("; if it is an address, write 0x{path}");
        }
        for module in modules {
            hint.extend(module.file.refused().iter().map(|why| format!("; {why}")));
        }
        ResolveError::NotFound { name: path.to_owned(), searched, near, hint }
    }

    fn finish(self, request: &Request, spot: Spot<'t>) -> Result<Watch, ResolveError> {
        let expression = request.expression.clone();
        let (mut warnings, avma) = (self.warnings, spot.avma);
        let access = request.access.unwrap_or(if spot.is_code { Access::Execute } else { Access::Write });
        if request.only_reads {
            warnings.push(format!("{expression}: x86 cannot watch reads alone, so writes stop as well"));
        }
        let len_bytes = match (access, request.len_bytes) {
            (Access::Execute, None | Some(8)) => 8,
            (Access::Execute, Some(len_bytes)) => {
                let hint = ", and 8 for x; leave the length out".to_owned();
                return Err(ResolveError::BadLength { expression, len_bytes, hint });
            }
            (_, Some(len_bytes)) => {
                if !matches!(len_bytes, 1 | 2 | 4 | 8) {
                    let hint = match spot.size {
                        Some(size) => format!("; leave the length out for all its {size} bytes"),
                        None => "; give several expressions for more".to_owned(),
                    };
                    return Err(ResolveError::BadLength { expression, len_bytes, hint });
                }
                if !avma.is_multiple_of(len_bytes) {
                    return Err(ResolveError::Unaligned { expression, avma, len_bytes });
                }
                len_bytes
            }
            (_, None) => match spot.size {
                Some(size) if size > 0 => size,
                _ => [8u64, 4, 2].into_iter().find(|len| avma.is_multiple_of(*len)).unwrap_or(1),
            },
        };
        let module = spot.module.or_else(|| self.target.module_at(avma));
        let symbol = module.and_then(|module| {
            let svma = avma.wrapping_sub(module.bias);
            let (name, range) = module.file.symbols().covering(svma)?;
            Some(SymbolAt { name, offset: svma - range.start, size_bytes: range.end - range.start })
        });
        Ok(Watch {
            avma,
            len_bytes,
            access,
            expression,
            module: module.map(|module| module.file.name().to_owned()),
            symbol,
            type_name: None,
            declared: None,
            value: ValueKind::Bytes,
            followed_pointers: self.followed,
            warnings,
        })
    }
}

fn spot_of<'t>(module: &'t Module, symbol: &Found) -> Spot<'t> {
    Spot {
        avma: symbol.svma.wrapping_add(module.bias),
        module: Some(module),
        size: (symbol.size > 0 && symbol.kind == Kind::Data).then_some(symbol.size),
        is_code: symbol.kind == Kind::Code,
    }
}
