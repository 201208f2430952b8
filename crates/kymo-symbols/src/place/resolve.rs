//! From an expression to a place: names through symbols and debug information, the end of the way.

use std::rc::Rc;

use super::debug::Reader;
use super::error::{Candidate, ResolveError};
use super::field::Bits;
use super::module::{Module, Target};
use super::near;
use super::request::{Access, Expr, Request};
use super::symbol::{Kind, NamedSymbol};
use super::types::{Shape, Type};
use super::value::ValueKind;
use super::variable::{self, Location, Variable};
use super::watch::{SymbolAt, Watch};

/// Finds the place that a request means in a target, now: pointers are followed through the target's memory.
///
/// Blocks only for reading files and memory. Nothing is armed.
///
/// # Errors
/// [`ResolveError`]: one sentence that says what is wrong and what to do.
pub fn resolve(request: &Request, target: &Target<'_>) -> Result<Watch, ResolveError> {
    let wants_code = request.access == Some(Access::Execute);
    let mut resolver =
        Resolver { target, wants_code, followed: false, warnings: Vec::new(), readers: Vec::new() };
    let spot = match resolver.spot(&request.tree) {
        Ok(spot) => spot,
        // Compilers number what has one name: `counter.0` can be a symbol, too.
        Err(error) => match resolver.symbol_of_whole(request) {
            Some(spot) => spot,
            None => return Err(error),
        },
    };
    resolver.finish(request, spot)
}

/// A place on the way.
#[derive(Clone, Default)]
pub(super) struct Spot<'t> {
    pub(super) avma: u64,
    pub(super) module: Option<&'t Module>,
    /// Its type, where one is known, and who can tell about it.
    pub(super) typed: Option<(Rc<Reader<'t>>, Type)>,
    /// Bytes of the object where only the symbol tells.
    pub(super) size: Option<u64>,
    pub(super) is_code: bool,
    /// A bit field: which bits from the place on.
    pub(super) bits: Option<Bits>,
    /// Why there is no type though there is debug information.
    pub(super) why_untyped: Option<&'static str>,
}

impl<'t> Spot<'t> {
    /// A place about which nothing is known.
    pub(super) fn bare(avma: u64, module: Option<&'t Module>) -> Spot<'t> {
        Spot { avma, module, ..Spot::default() }
    }
}

pub(super) struct Resolver<'t, 'm> {
    pub(super) target: &'t Target<'m>,
    wants_code: bool,
    pub(super) followed: bool,
    pub(super) warnings: Vec<String>,
    /// By the number of the module; made when they are needed.
    readers: Vec<(usize, Rc<Reader<'t>>)>,
}

impl<'t> Resolver<'t, '_> {
    fn spot(&mut self, tree: &Expr) -> Result<Spot<'t>, ResolveError> {
        match tree {
            Expr::Address(avma) => Ok(Spot::bare(*avma, None)),
            Expr::Name { file, path } => self.name(file.as_deref(), path),
            Expr::Offset(inner, bytes) => {
                let spot = self.spot(inner)?;
                let avma = spot.avma.wrapping_add_signed(*bytes);
                Ok(Spot { is_code: spot.is_code, ..Spot::bare(avma, spot.module) })
            }
            Expr::Follow(inner) => {
                let spot = self.spot(inner)?;
                let target = self.follow(&spot, &inner.to_string(), &format!("*{inner}"))?;
                Ok(self.counted(&target)?.unwrap_or(target))
            }
            Expr::Field(inner, name) => match (self.spot(inner), &**inner) {
                (Ok(spot), _) => self.field(spot, &inner.to_string(), name, false),
                // Go's variables have their package in their name.
                (Err(error), Expr::Name { file: None, path }) => {
                    self.name(None, &format!("{path}.{name}")).map_err(|_| error)
                }
                (Err(error), _) => Err(error),
            },
            Expr::Arrow(inner, name) => {
                let spot = self.spot(inner)?;
                self.field(spot, &inner.to_string(), name, true)
            }
            Expr::Index(inner, index) => {
                let spot = self.spot(inner)?;
                self.index(spot, &inner.to_string(), *index)
            }
        }
    }

    fn reader(&mut self, number: usize) -> Option<Rc<Reader<'t>>> {
        if let Some((_, reader)) = self.readers.iter().find(|(known, _)| *known == number) {
            return Some(Rc::clone(reader));
        }
        let reader = Rc::new(self.target.modules.get(number)?.file.debug_info(false)?.reader());
        self.readers.push((number, Rc::clone(&reader)));
        Some(reader)
    }

    fn name(&mut self, file: Option<&str>, path: &str) -> Result<Spot<'t>, ResolveError> {
        let target = self.target;
        let mut why_not = None;
        let mut known: Vec<Vec<Variable>> = Vec::new();
        // First who has exactly this name, then who has it at the end of a longer one; the program before libraries.
        for exactly in [true, false] {
            for (number, module) in target.modules.iter().enumerate() {
                let symbols = if exactly || file.is_none() {
                    module.file.symbols().named(path, file, exactly)
                } else {
                    Vec::new()
                };
                if self.wants_code && symbols.iter().any(|symbol| symbol.kind == Kind::Code) {
                    let code: Vec<NamedSymbol> =
                        symbols.into_iter().filter(|symbol| symbol.kind == Kind::Code).collect();
                    return self.of_symbols(module, path, code, None);
                }
                if known.len() <= number {
                    let found = match self.reader(number) {
                        Some(reader) => variable::find(&reader, file, path),
                        None => Vec::new(),
                    };
                    known.push(found);
                }
                let variables = &known[number];
                let fits = variables.iter().any(|variable| variable.is_whole() == exactly);
                if fits && variables.iter().any(|variable| matches!(variable.location, Location::Svma(_))) {
                    return self.of_variables(number, path, variables);
                }
                let reader = self.reader(number);
                let told = reader.zip(variables.first().filter(|_| fits));
                if !symbols.is_empty() {
                    return self.of_symbols(module, path, symbols, told);
                }
                // That a library's own variable of this name has no place says nothing of one in a program whose names are gone.
                let of_a_library = number > 0
                    && self.target.modules.first().is_some_and(|program| program.file.is_stripped());
                if let Some((_, variable)) = told
                    && why_not.is_none()
                    && !of_a_library
                {
                    why_not = nowhere(path, variable);
                }
            }
        }
        if why_not.is_none()
            && let Some(program) = self.reader(0)
            && variable::is_rust_thread_local(&program, path)
        {
            return Err(ResolveError::ThreadLocal { name: path.to_owned() });
        }
        Err(why_not.unwrap_or_else(|| self.not_found(path)))
    }

    fn of_variables(
        &mut self,
        number: usize,
        path: &str,
        variables: &[Variable],
    ) -> Result<Spot<'t>, ResolveError> {
        let module = &self.target.modules[number];
        let Some(reader) = self.reader(number) else { return Err(self.not_found(path)) };
        let mut placed: Vec<(&Variable, u64)> = variables
            .iter()
            .filter_map(|variable| match variable.location {
                Location::Svma(svma) => Some((variable, svma.wrapping_add(module.bias))),
                _ => None,
            })
            .collect();
        let candidates: Vec<Candidate> = placed
            .iter()
            .map(|&(variable, avma)| {
                let (file, line) = reader.declared(variable.die);
                let file = file.or_else(|| reader.unit_name(variable.die.unit));
                Candidate { path: variable.path.clone(), file, line, avma }
            })
            .collect();
        // What all files can mean hides what is one file's own.
        if placed.len() > 1 && placed.iter().filter(|(variable, _)| variable.is_external).count() == 1 {
            placed.retain(|(variable, _)| variable.is_external);
            self.warnings.push(format!(
                "'{path}' is also the name of {} other variables; the global one was taken, FILE:{path} takes another",
                candidates.len() - 1
            ));
        }
        let &[(variable, avma)] = placed.as_slice() else {
            return Err(ResolveError::Ambiguous { name: path.to_owned(), candidates });
        };
        let avma = self.copied(number, &reader, variable).unwrap_or(avma);
        let kind = Type::of(&reader, variable.die);
        Ok(Spot { typed: Some((reader, kind)), ..Spot::bare(avma, Some(module)) })
    }

    /// Where a library's variable is when the program took a copy of it, as programs at fixed addresses do.
    fn copied(&self, number: usize, reader: &Reader<'_>, variable: &Variable) -> Option<u64> {
        if !variable.is_external {
            return None;
        }
        let name = reader.linkage_name(variable.die).or_else(|| reader.name(variable.die))?;
        let name = std::str::from_utf8(name).ok()?;
        self.target.modules[..number].iter().find_map(|module| {
            let svma = module.file.symbols().exported_data(name)?;
            Some(svma.wrapping_add(module.bias))
        })
    }

    /// The place of symbols; `told` is what debug information says about the name without having a place for it.
    fn of_symbols(
        &mut self,
        module: &'t Module,
        path: &str,
        mut found: Vec<NamedSymbol>,
        told: Option<(Rc<Reader<'t>>, &Variable)>,
    ) -> Result<Spot<'t>, ResolveError> {
        // A global symbol hides the local ones of other files.
        if found.len() > 1 && found.iter().filter(|symbol| symbol.global).count() == 1 {
            found.retain(|symbol| symbol.global);
        }
        let [one] = found.as_slice() else {
            let candidate = |symbol: &NamedSymbol| Candidate {
                path: symbol.name.clone(),
                file: symbol.file.clone(),
                line: None,
                avma: symbol.svma.wrapping_add(module.bias),
            };
            let candidates = found.iter().map(candidate).collect();
            return Err(ResolveError::Ambiguous { name: path.to_owned(), candidates });
        };
        if one.kind == Kind::ThreadLocal {
            return Err(ResolveError::ThreadLocal { name: path.to_owned() });
        }
        let mut spot = Spot::bare(one.svma.wrapping_add(module.bias), Some(module));
        spot.is_code = one.kind == Kind::Code;
        spot.size = (one.size > 0 && !spot.is_code).then_some(one.size);
        if let Some((_, Variable { location: Location::Nowhere(why), .. })) = told {
            spot.why_untyped = Some(why);
        }
        // The declaration of what another file defines has its type.
        if let Some((reader, variable)) = told
            && variable.location == Location::Elsewhere
            && !spot.is_code
        {
            let kind = Type::of(&reader, variable.die);
            spot.typed = Some((reader, kind));
        }
        Ok(spot)
    }

    fn symbol_of_whole(&mut self, request: &Request) -> Option<Spot<'t>> {
        if !matches!(request.tree, Expr::Field(..)) {
            return None;
        }
        let target = self.target;
        target.modules.iter().find_map(|module| {
            let found = module.file.symbols().named(&request.expression, None, true);
            if found.is_empty() {
                None
            } else {
                self.of_symbols(module, &request.expression, found, None).ok()
            }
        })
    }

    fn not_found(&self, path: &str) -> ResolveError {
        let modules = &self.target.modules;
        let searched = match modules.as_slice() {
            [] => "no module at all".to_owned(),
            [one] => one.file.short_name(),
            [first, rest @ ..] => format!("{} and {} libraries", first.file.short_name(), rest.len()),
        };
        let like = |modules: &[Module]| {
            let names: Vec<String> =
                modules.iter().flat_map(|module| module.file.symbols().names()).collect();
            near::nearest(path, names.iter().map(String::as_str))
        };
        let (program, libraries) = modules.split_at(modules.len().min(1));
        let mut near = like(program);
        if near.is_empty() {
            near = like(libraries);
        }
        let stripped = program.first().filter(|module| module.file.is_stripped());
        let mut hint = match stripped {
            Some(module) => {
                let name = module.file.short_name();
                format!(
                    "; {name} is stripped: install its debug symbols, or watch an address (0xADDRESS:LENGTH)"
                )
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

    fn finish(mut self, request: &Request, mut spot: Spot<'t>) -> Result<Watch, ResolveError> {
        let expression = request.expression.clone();
        // A reference has no place of its own in the language: what it refers to is meant.
        if let Some((reader, kind)) = &spot.typed
            && kind.shape(reader) == Shape::Reference
        {
            spot = self.follow(&spot, &expression, &expression)?;
        }
        let (mut size, mut value, mut type_name) = (spot.size, ValueKind::Bytes, None);
        if let Some((reader, kind)) = &spot.typed {
            type_name = Some(kind.spelled(reader));
            spot.is_code |= kind.shape(reader) == Shape::Function;
            size = kind.size(reader).or(size);
            value = kind.value_kind(reader);
            if size == Some(0) {
                let why = "its type has no bytes; watch something beside it";
                return Err(ResolveError::NoPlace { name: expression, why: why.to_owned() });
            }
        }
        let access = request.access.unwrap_or(if spot.is_code { Access::Execute } else { Access::Write });
        if request.only_reads {
            self.warnings.push(format!("{expression}: x86 cannot watch reads alone, so writes stop as well"));
        }
        if self.followed {
            self.warnings.push(format!(
                "{expression} is at {:#x} now; the watch stays there when a pointer on the way changes",
                spot.avma
            ));
        }
        let (avma, len_bytes) = match spot.bits.filter(|_| access != Access::Execute) {
            Some(bits) => self.of_bits(request, &spot, bits, &mut value)?,
            None => (spot.avma, length(request, access, spot.avma, size)?),
        };
        let is_cut = size.is_some_and(|size| size != len_bytes) && spot.bits.is_none();
        if is_cut && matches!(value, ValueKind::Float | ValueKind::Enum { .. } | ValueKind::Pointer) {
            value = ValueKind::Bytes;
        }
        let module = spot.module.or_else(|| self.target.module_at(avma));
        let symbol = module.and_then(|module| {
            let svma = avma.wrapping_sub(module.bias);
            let (name, offset) = module.file.symbols().covering(svma)?;
            Some(SymbolAt { name, offset })
        });
        Ok(Watch {
            avma,
            len_bytes,
            access,
            expression,
            module: module.map(|module| module.file.name().to_owned()),
            symbol,
            type_name,
            value,
            warnings: self.warnings,
        })
    }

    /// The smallest range that a register can hold around a bit field.
    fn of_bits(
        &mut self,
        request: &Request,
        spot: &Spot<'t>,
        bits: Bits,
        value: &mut ValueKind,
    ) -> Result<(u64, u64), ResolveError> {
        let expression = &request.expression;
        if let Some(len_bytes) = request.len_bytes.filter(|len| !matches!(len, 1 | 2 | 4 | 8)) {
            let hint = String::new();
            return Err(ResolveError::BadLength { expression: expression.clone(), len_bytes, hint });
        }
        let start = spot.avma.wrapping_add(bits.first / 8);
        let end = spot.avma.wrapping_add(bits.first.saturating_add(bits.width.max(1)).div_ceil(8));
        let least = request.len_bytes.unwrap_or(1);
        let fits = |len: &u64| *len >= least && (start - start % len).wrapping_add(*len) >= end;
        let (avma, len_bytes) = match [1u64, 2, 4, 8].into_iter().find(fits) {
            Some(len) => (start - start % len, len),
            None => (start, end.wrapping_sub(start)),
        };
        let signed = *value == ValueKind::Signed;
        let shift = spot.avma.wrapping_sub(avma).wrapping_mul(8).wrapping_add(bits.first);
        *value = ValueKind::Bits { shift: shift as u32, width: bits.width.min(64) as u32, signed };
        if bits.width != len_bytes * 8 {
            self.warnings.push(format!(
                "{expression} is {} bits; the watch covers the {len_bytes} bytes that hold them, so writes to its neighbours stop as well",
                bits.width
            ));
        }
        Ok((avma, len_bytes))
    }
}

/// The length that was asked for, or the object's.
fn length(request: &Request, access: Access, avma: u64, size: Option<u64>) -> Result<u64, ResolveError> {
    let expression = request.expression.clone();
    match (access, request.len_bytes) {
        (Access::Execute, None | Some(8)) => Ok(8),
        (Access::Execute, Some(len_bytes)) => {
            let hint = ", and 8 for x; leave the length out".to_owned();
            Err(ResolveError::BadLength { expression, len_bytes, hint })
        }
        (_, Some(len_bytes)) if !matches!(len_bytes, 1 | 2 | 4 | 8) => {
            let hint = match size {
                Some(size) => format!("; leave the length out for all its {size} bytes"),
                None => "; give several expressions for more".to_owned(),
            };
            Err(ResolveError::BadLength { expression, len_bytes, hint })
        }
        (_, Some(len_bytes)) if !avma.is_multiple_of(len_bytes) => {
            Err(ResolveError::Unaligned { expression, avma, len_bytes })
        }
        (_, Some(len_bytes)) => Ok(len_bytes),
        (_, None) => Ok(match size {
            Some(size) if size > 0 => size,
            _ => [8u64, 4, 2].into_iter().find(|len| avma.is_multiple_of(*len)).unwrap_or(1),
        }),
    }
}

/// Why a variable that is known has no address.
fn nowhere(path: &str, variable: &Variable) -> Option<ResolveError> {
    let name = path.to_owned();
    match &variable.location {
        Location::ThreadLocal => Some(ResolveError::ThreadLocal { name }),
        Location::Local => {
            let function = variable.function.clone().unwrap_or_else(|| "a function".to_owned());
            Some(ResolveError::Local { name, function })
        }
        Location::Nowhere(why) => Some(ResolveError::NoPlace { name, why: (*why).to_owned() }),
        Location::Svma(_) | Location::Elsewhere => None,
    }
}
