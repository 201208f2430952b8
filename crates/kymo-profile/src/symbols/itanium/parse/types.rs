//! Types.

use super::super::{Id, LiteralStyle, Node, Qualifier};
use super::Parser;

fn builtin(code: u8) -> Option<(&'static str, LiteralStyle)> {
    use LiteralStyle::*;
    Some(match code {
        b'a' => ("signed char", Cast),
        b'b' => ("bool", Bool),
        b'c' => ("char", Cast),
        b'd' => ("double", Float),
        b'e' => ("long double", Float),
        b'f' => ("float", Float),
        b'g' => ("__float128", Float),
        b'h' => ("unsigned char", Cast),
        b'i' => ("int", Suffix("")),
        b'j' => ("unsigned int", Suffix("u")),
        b'l' => ("long", Suffix("l")),
        b'm' => ("unsigned long", Suffix("ul")),
        b'n' => ("__int128", Cast),
        b'o' => ("unsigned __int128", Cast),
        b's' => ("short", Cast),
        b't' => ("unsigned short", Cast),
        b'v' => ("void", Cast),
        b'w' => ("wchar_t", Cast),
        b'x' => ("long long", Suffix("ll")),
        b'y' => ("unsigned long long", Suffix("ull")),
        b'z' => ("...", Cast),
        _ => return None,
    })
}

impl<'a> Parser<'a> {
    /// Result (if there is one) and parameters.
    pub(super) fn bare_function(&mut self, has_result: bool) -> Option<Id> {
        let has_result = self.eat(b'J') || has_result;
        let result = match has_result {
            true => Some(self.type_()?),
            false => None,
        };
        let mut parameters = Vec::new();
        loop {
            let at_qualifier = matches!(self.peek(), b'R' | b'O') && self.peek_at(1) == b'E';
            if self.at >= self.text.len() || matches!(self.peek(), b'E' | b'.') || at_qualifier {
                break;
            }
            parameters.push(self.type_()?);
        }
        if parameters.is_empty() {
            return None;
        }
        self.drop_void(&mut parameters);
        self.add(Node::Function(result, parameters))
    }

    fn function_type(&mut self) -> Option<Id> {
        self.expect(b'F')?;
        self.eat(b'Y');
        let function = self.bare_function(true)?;
        let reference = self.reference_qualifier();
        self.expect(b'E')?;
        match reference {
            Some(qualifier) => self.add(Node::Member(qualifier, function)),
            None => Some(function),
        }
    }

    pub(super) fn type_(&mut self) -> Option<Id> {
        self.deeper(Self::type_rule)
    }

    fn type_rule(&mut self) -> Option<Id> {
        let qualifiers = self.cv_qualifiers();
        if !qualifiers.is_empty() {
            let of_function = self.peek() == b'F';
            let mut id = if of_function { self.function_type()? } else { self.type_()? };
            // The reference qualifier of a function type is written behind the others.
            let mut outer = None;
            if let (true, Node::Member(q @ (Qualifier::Lvalue | Qualifier::Rvalue), inner)) =
                (of_function, self.node(id))
            {
                outer = Some(*q);
                id = *inner;
            }
            for qualifier in qualifiers.into_iter().rev() {
                id = self.add(if of_function {
                    Node::Member(qualifier, id)
                } else {
                    Node::Cv(qualifier, id)
                })?;
            }
            if let Some(qualifier) = outer {
                id = self.add(Node::Member(qualifier, id))?;
            }
            return Some(self.remember(id));
        }
        let code = self.peek();
        if let Some((name, style)) = builtin(code) {
            self.at += 1;
            return self.add(Node::Builtin(name, style));
        }
        let id = match code {
            b'u' => {
                self.at += 1;
                let name = self.source_name()?;
                if self.peek() == b'I' {
                    let arguments = self.template_arguments()?;
                    self.add(Node::Template(name, arguments))?
                } else {
                    name
                }
            }
            b'F' => self.function_type()?,
            b'0'..=b'9' | b'N' | b'Z' => self.name()?,
            b'A' => self.array()?,
            b'M' => {
                self.at += 1;
                let class = self.type_()?;
                let member = self.type_()?;
                self.add(Node::MemberPointer(class, member))?
            }
            b'T' if matches!(self.peek_at(1), b's' | b'u' | b'e') => {
                self.at += 2;
                self.name()?
            }
            b'T' => {
                let parameter = self.template_parameter()?;
                if self.peek() != b'I' {
                    parameter
                } else if self.in_conversion && !self.arguments_are_followed_by_more() {
                    // The arguments are the conversion operator's own.
                    parameter
                } else {
                    self.remember(parameter);
                    let arguments = self.template_arguments()?;
                    self.add(Node::Template(parameter, arguments))?
                }
            }
            b'S' => {
                let next = self.peek_at(1);
                if next == b'_' || next.is_ascii_digit() || next.is_ascii_uppercase() {
                    let known = self.substitution(false)?;
                    if self.peek() != b'I' {
                        return Some(known);
                    }
                    let arguments = self.template_arguments()?;
                    self.add(Node::Template(known, arguments))?
                } else {
                    let name = self.name()?;
                    if matches!(self.node(name), Node::Abbreviation(_)) {
                        return Some(name);
                    }
                    name
                }
            }
            b'P' | b'R' | b'O' | b'C' | b'G' => {
                self.at += 1;
                let to = self.type_()?;
                self.add(match code {
                    b'P' => Node::Pointer(to),
                    b'R' => Node::Reference(to),
                    b'O' => Node::RvalueReference(to),
                    b'C' => Node::Complex(to),
                    _ => Node::Imaginary(to),
                })?
            }
            b'U' => {
                self.at += 1;
                let mut qualifier = self.source_name()?;
                if self.peek() == b'I' {
                    let arguments = self.template_arguments()?;
                    qualifier = self.add(Node::Template(qualifier, arguments))?;
                }
                let of = self.type_()?;
                self.add(Node::VendorQualified(of, qualifier))?
            }
            b'D' => return self.d_type(),
            _ => return None,
        };
        Some(self.remember(id))
    }

    /// Looks ahead: whether another list of template arguments follows this one.
    fn arguments_are_followed_by_more(&mut self) -> bool {
        let (at, nodes, known, last_name) =
            (self.at, self.nodes.len(), self.substitutions.len(), self.last_name);
        let more = self.template_arguments().is_some() && self.peek() == b'I';
        (self.at, self.last_name) = (at, last_name);
        self.nodes.truncate(nodes);
        self.substitutions.truncate(known);
        more
    }

    fn array(&mut self) -> Option<Id> {
        self.expect(b'A')?;
        let dimension = match self.peek() {
            b'_' => None,
            b'0'..=b'9' => {
                let digits = self.digits();
                Some(self.add(Node::Name(digits))?)
            }
            _ => Some(self.expression()?),
        };
        self.expect(b'_')?;
        let element = self.type_()?;
        self.add(Node::Array(dimension, element))
    }

    /// Types that start with `D`.
    fn d_type(&mut self) -> Option<Id> {
        let code = self.peek_at(1);
        if matches!(code, b'o' | b'O' | b'w') {
            self.at += 2;
            if code != b'o' {
                // Computed exception specifications: left to the second opinion.
                return None;
            }
            let function = self.function_type()?;
            let id = self.add(Node::Member(Qualifier::Noexcept, function))?;
            return Some(self.remember(id));
        }
        self.at += 2;
        let plain = |p: &mut Self, name| p.add(Node::Builtin(name, LiteralStyle::Cast));
        let id = match code {
            b'T' | b't' => {
                let expression = self.expression()?;
                self.expect(b'E')?;
                self.add(Node::Decltype(expression))?
            }
            b'p' => {
                let pattern = self.type_()?;
                self.add(Node::Pack(pattern))?
            }
            b'v' => {
                let dimension = if self.eat(b'_') {
                    self.expression()?
                } else {
                    let digits = self.digits();
                    self.add(Node::Name(digits))?
                };
                self.expect(b'_')?;
                let element = self.type_()?;
                self.add(Node::Vector(dimension, element))?
            }
            b'n' => return plain(self, "decltype(nullptr)"),
            b'a' => return plain(self, "auto"),
            b'c' => return plain(self, "decltype(auto)"),
            b'd' => return self.add(Node::Builtin("decimal64", LiteralStyle::Cast)),
            b'e' => return self.add(Node::Builtin("decimal128", LiteralStyle::Cast)),
            b'f' => return self.add(Node::Builtin("decimal32", LiteralStyle::Cast)),
            b'h' => return self.add(Node::Builtin("half", LiteralStyle::Float)),
            b's' => return plain(self, "char16_t"),
            b'i' => return plain(self, "char32_t"),
            b'u' => return plain(self, "char8_t"),
            b'F' => {
                let digits = self.digits();
                self.expect(b'_')?;
                return self.add(Node::Numbered("_Float", digits, ""));
            }
            _ => return None,
        };
        Some(self.remember(id))
    }
}
