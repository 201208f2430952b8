//! The grammar: from mangled text to a tree.

mod expression;
mod types;

use super::{Id, Node, Qualifier};

/// Deeper names are not believed.
const DEEPEST: u32 = 192;

struct Parser<'a> {
    text: &'a str,
    at: usize,
    nodes: Vec<Node<'a>>,
    substitutions: Vec<Id>,
    /// What a constructor is called.
    last_name: Option<Id>,
    depth: u32,
    in_conversion: bool,
}

/// Parses what follows `_Z`. Without `params`, reading stops behind the name.
pub(super) fn parse(text: &str, params: bool) -> Option<(Vec<Node<'_>>, Id)> {
    let mut parser = Parser {
        text,
        at: 0,
        nodes: Vec::new(),
        substitutions: Vec::new(),
        last_name: None,
        depth: 0,
        in_conversion: false,
    };
    let root = parser.encoding(!params)?;
    if params && parser.at < text.len() && parser.peek() != b'.' {
        return None;
    }
    Some((parser.nodes, root))
}

/// Operators by their codes.
#[rustfmt::skip]
const OPERATORS: [(&str, &str); 54] = [
    ("aN", "&="), ("aS", "="), ("aa", "&&"), ("ad", "&"), ("an", "&"), ("aw", "co_await"),
    ("cl", "()"), ("cm", ","), ("co", "~"), ("dV", "/="), ("da", "delete[]"), ("de", "*"),
    ("dl", "delete"), ("ds", ".*"), ("dt", "."), ("dv", "/"), ("eO", "^="), ("eo", "^"),
    ("eq", "=="), ("ge", ">="), ("gt", ">"), ("ix", "[]"), ("lS", "<<="), ("le", "<="),
    ("ls", "<<"), ("lt", "<"), ("mI", "-="), ("mL", "*="), ("mi", "-"), ("ml", "*"), ("mm", "--"),
    ("na", "new[]"), ("ne", "!="), ("ng", "-"), ("nt", "!"), ("nw", "new"), ("oR", "|="),
    ("oo", "||"), ("or", "|"), ("pL", "+="), ("pl", "+"), ("pm", "->*"), ("pp", "++"), ("ps", "+"),
    ("pt", "->"), ("qu", "?"), ("rM", "%="), ("rS", ">>="), ("rm", "%"), ("rs", ">>"),
    ("ss", "<=>"), ("sz", "sizeof "), ("az", "alignof "), ("nx", "noexcept"),
];

fn operator(code: &str) -> Option<&'static str> {
    OPERATORS.iter().find(|(known, _)| *known == code).map(|(_, name)| *name)
}

impl<'a> Parser<'a> {
    fn peek(&self) -> u8 {
        self.peek_at(0)
    }

    fn peek_at(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn starts(&self, prefix: &str) -> bool {
        self.text.as_bytes()[self.at.min(self.text.len())..].starts_with(prefix.as_bytes())
    }

    fn eat(&mut self, byte: u8) -> bool {
        let is = self.peek() == byte && self.at < self.text.len();
        self.at += usize::from(is);
        is
    }

    fn eat_all(&mut self, prefix: &str) -> bool {
        let is = self.starts(prefix);
        if is {
            self.at += prefix.len();
        }
        is
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.eat(byte).then_some(())
    }

    fn add(&mut self, node: Node<'a>) -> Option<Id> {
        if self.nodes.len() > 4 * self.text.len() + 64 {
            return None;
        }
        self.nodes.push(node);
        Some(self.nodes.len() as Id - 1)
    }

    fn node(&self, id: Id) -> &Node<'a> {
        &self.nodes[id as usize]
    }

    fn remember(&mut self, id: Id) -> Id {
        self.substitutions.push(id);
        id
    }

    /// Runs a rule one level deeper.
    fn deeper<T>(&mut self, rule: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth >= DEEPEST {
            return None;
        }
        self.depth += 1;
        let result = rule(self);
        self.depth -= 1;
        result
    }

    fn digits(&mut self) -> &'a str {
        let start = self.at;
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    fn number(&mut self) -> Option<u32> {
        self.digits().parse().ok()
    }

    /// `_` is 0, `0_` is 1, and so on.
    fn compact_number(&mut self) -> Option<u32> {
        let number = if self.peek() == b'_' { 0 } else { self.number()?.checked_add(1)? };
        self.expect(b'_')?;
        Some(number)
    }

    fn encoding(&mut self, name_only: bool) -> Option<Id> {
        self.deeper(|p| {
            if matches!(p.peek(), b'T' | b'G') {
                return p.special();
            }
            let name = p.name()?;
            if name_only {
                return p.without_member_qualifiers(name);
            }
            if p.at >= p.text.len() || matches!(p.peek(), b'E' | b'.') {
                return Some(name);
            }
            let has_result = p.has_result(name);
            let function = p.bare_function(has_result)?;
            p.add(Node::Typed(name, function))
        })
    }

    /// What is shown of a function's name when its parameters are not.
    fn without_member_qualifiers(&mut self, mut name: Id) -> Option<Id> {
        while let Node::Member(_, inner) = *self.node(name) {
            name = inner;
        }
        if let Node::Local(function, entity) = *self.node(name) {
            let mut bare = entity;
            while let Node::Member(_, inner) = *self.node(bare) {
                bare = inner;
            }
            if bare != entity {
                return self.add(Node::Local(function, bare));
            }
        }
        Some(name)
    }

    /// Template functions carry their result type, except those that have none.
    fn has_result(&self, name: Id) -> bool {
        match *self.node(name) {
            Node::Member(_, inner) => self.has_result(inner),
            Node::Local(_, entity) => self.has_result(entity),
            Node::Template(inner, _) => !self.is_without_result(inner),
            _ => false,
        }
    }

    fn is_without_result(&self, name: Id) -> bool {
        match *self.node(name) {
            Node::Qualified(_, last) | Node::Local(_, last) => self.is_without_result(last),
            Node::Tagged(inner, _) => self.is_without_result(inner),
            Node::Constructor(_) | Node::Destructor(_) | Node::Conversion(_) => true,
            _ => false,
        }
    }

    fn special(&mut self) -> Option<Id> {
        let code = self.text.get(self.at..self.at + 2)?;
        self.at += 2;
        let of_type = |p: &mut Self, words| {
            let of = p.type_()?;
            p.add(Node::Special(words, of))
        };
        let of_name = |p: &mut Self, words| {
            let of = p.name()?;
            p.add(Node::Special(words, of))
        };
        let of_encoding = |p: &mut Self, words| {
            let of = p.encoding(false)?;
            p.add(Node::Special(words, of))
        };
        match code {
            "TV" => of_type(self, "vtable for "),
            "TT" => of_type(self, "VTT for "),
            "TI" => of_type(self, "typeinfo for "),
            "TS" => of_type(self, "typeinfo name for "),
            "TF" => of_type(self, "typeinfo fn for "),
            "TJ" => of_type(self, "java Class for "),
            "TH" => of_name(self, "TLS init function for "),
            "TW" => of_name(self, "TLS wrapper function for "),
            "TA" => {
                let of = self.template_argument()?;
                self.add(Node::Special("template parameter object for ", of))
            }
            "GV" => of_name(self, "guard variable for "),
            "GA" => of_encoding(self, "hidden alias for "),
            "Th" => {
                self.at -= 1;
                self.call_offset()?;
                of_encoding(self, "non-virtual thunk to ")
            }
            "Tv" => {
                self.at -= 1;
                self.call_offset()?;
                of_encoding(self, "virtual thunk to ")
            }
            "Tc" => {
                self.call_offset()?;
                self.call_offset()?;
                of_encoding(self, "covariant return thunk to ")
            }
            "TC" => {
                let derived = self.type_()?;
                self.digits();
                self.expect(b'_')?;
                let base = self.type_()?;
                self.add(Node::ConstructionVtable(base, derived))
            }
            "GR" => {
                let of = self.name()?;
                let number = self.digits();
                self.add(Node::ReferenceTemporary(if number.is_empty() { "0" } else { number }, of))
            }
            "GT" => {
                let words = if self.eat(b'n') {
                    "non-transaction clone for "
                } else {
                    self.expect(b't')?;
                    "transaction clone for "
                };
                of_encoding(self, words)
            }
            _ => None,
        }
    }

    fn call_offset(&mut self) -> Option<()> {
        let numbers = match self.peek() {
            b'h' => 1,
            b'v' => 2,
            _ => return None,
        };
        self.at += 1;
        for _ in 0..numbers {
            self.eat(b'n');
            self.digits();
            self.expect(b'_')?;
        }
        Some(())
    }

    fn name(&mut self) -> Option<Id> {
        self.deeper(|p| {
            let name = match p.peek() {
                b'N' => return p.nested(),
                b'Z' => return p.local(),
                b'S' if p.peek_at(1) != b't' => {
                    let name = p.substitution(false)?;
                    if p.peek() != b'I' {
                        return Some(name);
                    }
                    name
                }
                _ => {
                    let in_std = p.eat_all("St");
                    let mut name = p.unqualified()?;
                    if in_std {
                        let std = p.add(Node::Name("std"))?;
                        name = p.add(Node::Qualified(std, name))?;
                    }
                    if p.peek() != b'I' {
                        return Some(name);
                    }
                    p.remember(name)
                }
            };
            let arguments = p.template_arguments()?;
            p.add(Node::Template(name, arguments))
        })
    }

    fn cv_qualifiers(&mut self) -> Vec<Qualifier> {
        let mut found = Vec::new();
        loop {
            found.push(match self.peek() {
                b'r' => Qualifier::Restrict,
                b'V' => Qualifier::Volatile,
                b'K' => Qualifier::Const,
                b'D' if self.peek_at(1) == b'x' => {
                    self.at += 1;
                    Qualifier::TransactionSafe
                }
                _ => return found,
            });
            self.at += 1;
        }
    }

    fn reference_qualifier(&mut self) -> Option<Qualifier> {
        if self.eat(b'R') {
            Some(Qualifier::Lvalue)
        } else if self.eat(b'O') {
            Some(Qualifier::Rvalue)
        } else {
            None
        }
    }

    fn nested(&mut self) -> Option<Id> {
        self.expect(b'N')?;
        let qualifiers = self.cv_qualifiers();
        let reference = self.reference_qualifier();
        let mut name = self.prefix(true)?;
        self.expect(b'E')?;
        for qualifier in qualifiers.into_iter().rev().chain(reference) {
            name = self.add(Node::Member(qualifier, name))?;
        }
        Some(name)
    }

    fn prefix(&mut self, remember: bool) -> Option<Id> {
        let mut whole: Option<Id> = None;
        loop {
            let first = self.peek();
            let part = match first {
                b'E' => return whole,
                b'S' => self.substitution(true)?,
                b'T' => self.template_parameter()?,
                b'D' if matches!(self.peek_at(1), b'T' | b't') => self.type_()?,
                b'M' => {
                    // The initializer of a data member; its name follows.
                    self.at += 1;
                    continue;
                }
                b'I' => {
                    let arguments = self.template_arguments()?;
                    let template = self.add(Node::Template(whole?, arguments))?;
                    whole = Some(template);
                    if remember && self.peek() != b'E' {
                        self.remember(template);
                    }
                    continue;
                }
                b'0'..=b'9' | b'a'..=b'z' | b'C' | b'D' | b'L' | b'U' => self.unqualified()?,
                _ => return None,
            };
            let joined = match whole {
                Some(before) => self.add(Node::Qualified(before, part))?,
                None => part,
            };
            whole = Some(joined);
            if remember && first != b'S' && self.peek() != b'E' {
                self.remember(joined);
            }
        }
    }

    fn unqualified(&mut self) -> Option<Id> {
        let internal = self.eat(b'L');
        let mut name = match self.peek() {
            b'0'..=b'9' => self.source_name()?,
            b'a'..=b'z' => self.operator_name()?,
            b'C' | b'D' => self.constructor_or_destructor()?,
            b'U' => self.closure_or_unnamed()?,
            _ => return None,
        };
        if internal {
            self.discriminator();
        }
        while self.eat(b'B') {
            let tag = self.identifier()?;
            name = self.add(Node::Tagged(name, tag))?;
        }
        Some(name)
    }

    fn identifier(&mut self) -> Option<&'a str> {
        let length = self.number()? as usize;
        if length == 0 {
            return None;
        }
        let name = self.text.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(name)
    }

    fn source_name(&mut self) -> Option<Id> {
        let name = self.identifier()?;
        let anonymous = name.strip_prefix("_GLOBAL_").is_some_and(|rest| {
            let rest = rest.as_bytes();
            rest.len() >= 2 && matches!(rest[0], b'_' | b'.' | b'$') && rest[1] == b'N'
        });
        let id = self.add(Node::Name(if anonymous { "(anonymous namespace)" } else { name }))?;
        self.last_name = Some(id);
        Some(id)
    }

    fn discriminator(&mut self) {
        if self.peek() != b'_' {
            return;
        }
        if self.peek_at(1) == b'_' {
            self.at += 2;
            self.digits();
            self.eat(b'_');
        } else if self.peek_at(1).is_ascii_digit() {
            self.at += 2;
        }
    }

    fn operator_name(&mut self) -> Option<Id> {
        self.eat_all("on");
        if self.eat_all("cv") {
            let before = std::mem::replace(&mut self.in_conversion, true);
            let to = self.type_();
            self.in_conversion = before;
            return self.add(Node::Conversion(to?));
        }
        if self.eat_all("li") {
            let name = self.identifier()?;
            return self.add(Node::LiteralOperator(name));
        }
        let name = operator(self.text.get(self.at..self.at + 2)?)?;
        self.at += 2;
        self.add(Node::Operator(name))
    }

    fn constructor_or_destructor(&mut self) -> Option<Id> {
        let name = self.last_name?;
        if self.eat(b'C') {
            let inheriting = self.eat(b'I');
            if !matches!(self.peek(), b'1'..=b'5') {
                return None;
            }
            self.at += 1;
            if inheriting {
                self.type_()?;
            }
            return self.add(Node::Constructor(name));
        }
        self.expect(b'D')?;
        if !matches!(self.peek(), b'0' | b'1' | b'2' | b'4' | b'5') {
            return None;
        }
        self.at += 1;
        self.add(Node::Destructor(name))
    }

    fn closure_or_unnamed(&mut self) -> Option<Id> {
        if self.eat_all("Ut") {
            let number = self.compact_number()?;
            let id = self.add(Node::Unnamed(number))?;
            return Some(self.remember(id));
        }
        if !self.eat_all("Ul") {
            return None;
        }
        let mut parameters = Vec::new();
        while self.peek() != b'E' {
            parameters.push(self.type_()?);
        }
        self.at += 1;
        self.drop_void(&mut parameters);
        let number = self.compact_number()?;
        self.add(Node::Lambda(parameters, number))
    }

    /// `(void)` is an empty list.
    fn drop_void(&self, parameters: &mut Vec<Id>) {
        if let [only] = parameters[..]
            && matches!(self.node(only), Node::Builtin("void", _))
        {
            parameters.clear();
        }
    }

    fn local(&mut self) -> Option<Id> {
        self.expect(b'Z')?;
        let function = self.encoding(false)?;
        self.expect(b'E')?;
        let function = self.without_result(function)?;
        if self.eat(b's') {
            self.discriminator();
            let literal = self.add(Node::Name("string literal"))?;
            return self.add(Node::Local(function, literal));
        }
        let default_argument = match self.eat(b'd') {
            true => Some(self.compact_number()?),
            false => None,
        };
        let mut entity = self.name()?;
        if !matches!(self.node(entity), Node::Lambda(..) | Node::Unnamed(_)) {
            self.discriminator();
        }
        if let Some(number) = default_argument {
            entity = self.add(Node::DefaultArgument(number, entity))?;
        }
        self.add(Node::Local(function, entity))
    }

    /// The function that something is local to is written without its result.
    fn without_result(&mut self, function: Id) -> Option<Id> {
        let Node::Typed(name, signature) = *self.node(function) else { return Some(function) };
        let Node::Function(Some(_), parameters) = self.node(signature) else { return Some(function) };
        let parameters = parameters.clone();
        let signature = self.add(Node::Function(None, parameters))?;
        self.add(Node::Typed(name, signature))
    }

    fn substitution(&mut self, in_prefix: bool) -> Option<Id> {
        self.expect(b'S')?;
        let code = self.peek();
        if code == b'_' || code.is_ascii_digit() || code.is_ascii_uppercase() {
            let mut number = 0usize;
            if code != b'_' {
                loop {
                    let digit = match self.peek() {
                        c @ b'0'..=b'9' => c - b'0',
                        c @ b'A'..=b'Z' => c - b'A' + 10,
                        b'_' => break,
                        _ => return None,
                    };
                    number = number.checked_mul(36)?.checked_add(usize::from(digit))?;
                    self.at += 1;
                }
                number = number.checked_add(1)?;
            }
            self.expect(b'_')?;
            return self.substitutions.get(number).copied();
        }
        self.at += 1;
        let spelled_out = in_prefix && matches!(self.peek(), b'C' | b'D');
        let (short, full, last) = match code {
            b't' => ("std", "std", ""),
            b'a' => ("std::allocator", "std::allocator", "allocator"),
            b'b' => ("std::basic_string", "std::basic_string", "basic_string"),
            b's' => (
                "std::string",
                "std::basic_string<char, std::char_traits<char>, std::allocator<char> >",
                "basic_string",
            ),
            b'i' => ("std::istream", "std::basic_istream<char, std::char_traits<char> >", "basic_istream"),
            b'o' => ("std::ostream", "std::basic_ostream<char, std::char_traits<char> >", "basic_ostream"),
            b'd' => ("std::iostream", "std::basic_iostream<char, std::char_traits<char> >", "basic_iostream"),
            _ => return None,
        };
        if !last.is_empty() {
            self.last_name = Some(self.add(Node::Name(last))?);
        }
        let mut id = self.add(Node::Abbreviation(if spelled_out { full } else { short }))?;
        if self.peek() == b'B' {
            while self.eat(b'B') {
                let tag = self.identifier()?;
                id = self.add(Node::Tagged(id, tag))?;
            }
            self.remember(id);
        }
        Some(id)
    }

    fn template_arguments(&mut self) -> Option<Id> {
        if !matches!(self.peek(), b'I' | b'J') {
            return None;
        }
        self.at += 1;
        // A constructor behind the arguments is called as the template, not as the last argument.
        let last_name = self.last_name;
        let mut arguments = Vec::new();
        while !self.eat(b'E') {
            arguments.push(self.template_argument()?);
        }
        self.last_name = last_name;
        self.add(Node::Arguments(arguments))
    }

    fn template_argument(&mut self) -> Option<Id> {
        self.deeper(|p| match p.peek() {
            b'X' => {
                p.at += 1;
                let expression = p.expression()?;
                p.expect(b'E')?;
                Some(expression)
            }
            b'L' => p.literal(),
            b'I' | b'J' => p.template_arguments(),
            _ => p.type_(),
        })
    }

    fn template_parameter(&mut self) -> Option<Id> {
        self.expect(b'T')?;
        let number = self.compact_number()?;
        self.add(Node::Parameter(number))
    }

    fn literal(&mut self) -> Option<Id> {
        self.expect(b'L')?;
        if self.eat_all("_Z") || self.starts("Z") {
            let name = self.encoding(false)?;
            self.expect(b'E')?;
            return Some(name);
        }
        let of = self.type_()?;
        if self.starts("E") && matches!(self.node(of), Node::Builtin("decltype(nullptr)", _)) {
            self.at += 1;
            return Some(of);
        }
        let negative = self.eat(b'n');
        let start = self.at;
        while self.peek() != b'E' {
            if self.at >= self.text.len() {
                return None;
            }
            self.at += 1;
        }
        let value = self.text.get(start..self.at)?;
        self.at += 1;
        self.add(Node::Literal(of, negative, value))
    }
}
