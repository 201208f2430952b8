//! Expressions in template arguments, array bounds and `decltype`.

use super::super::{Id, Node};
use super::{Parser, operator};

impl<'a> Parser<'a> {
    fn expressions_until_end(&mut self) -> Option<Vec<Id>> {
        let mut list = Vec::new();
        while !self.eat(b'E') {
            list.push(self.expression()?);
        }
        Some(list)
    }

    pub(super) fn expression(&mut self) -> Option<Id> {
        self.deeper(Self::expression_rule)
    }

    fn expression_rule(&mut self) -> Option<Id> {
        match self.peek() {
            b'L' => return self.literal(),
            b'T' => return self.template_parameter(),
            b'0'..=b'9' | b'N' => return self.name_with_arguments(),
            _ => {}
        }
        if self.eat_all("fpT") {
            return self.add(Node::FunctionParameter(None));
        }
        if self.eat_all("fp") {
            self.cv_qualifiers();
            let number = self.compact_number()?;
            return self.add(Node::FunctionParameter(Some(number)));
        }
        if self.eat_all("fL") {
            self.digits();
            self.expect(b'p')?;
            self.cv_qualifiers();
            let number = self.compact_number()?;
            return self.add(Node::FunctionParameter(Some(number)));
        }
        if self.eat_all("sr") {
            let start = (self.at, self.substitutions.len());
            let mut scope = self.type_()?;
            if self.peek() == b'E' {
                // Qualifiers with an end of their own are no candidates for substitution.
                self.at = start.0;
                self.substitutions.truncate(start.1);
                scope = self.prefix(false)?;
                self.expect(b'E')?;
            }
            let mut name = self.unqualified()?;
            if self.peek() == b'I' {
                let arguments = self.template_arguments()?;
                name = self.add(Node::Template(name, arguments))?;
            }
            return self.add(Node::Qualified(scope, name));
        }
        if self.eat_all("on") {
            let name = self.operator_name()?;
            if self.peek() == b'I' {
                let arguments = self.template_arguments()?;
                return self.add(Node::Template(name, arguments));
            }
            return Some(name);
        }
        let code = self.text.get(self.at..self.at + 2)?;
        self.at += 2;
        match code {
            "st" | "at" | "ti" => {
                let of = self.type_()?;
                let word = match code {
                    "st" => "sizeof ",
                    "at" => "alignof ",
                    _ => "typeid ",
                };
                self.add(Node::TypeOperator(word, of))
            }
            "sZ" => {
                let pack = self.expression()?;
                self.add(Node::SizeofPack(pack))
            }
            "sp" => {
                let pattern = self.expression()?;
                self.add(Node::Pack(pattern))
            }
            "cv" => {
                let to = self.type_()?;
                let values =
                    if self.eat(b'_') { self.expressions_until_end()? } else { vec![self.expression()?] };
                self.add(Node::CastExpression(to, values))
            }
            "sc" | "dc" | "rc" | "cc" => {
                let to = self.type_()?;
                let value = self.expression()?;
                let word = match code {
                    "sc" => "static_cast",
                    "dc" => "dynamic_cast",
                    "rc" => "reinterpret_cast",
                    _ => "const_cast",
                };
                self.add(Node::NamedCast(word, to, value))
            }
            "cl" => {
                let callee = self.expression()?;
                let arguments = self.expressions_until_end()?;
                self.add(Node::Call(callee, arguments))
            }
            "il" => {
                let values = self.expressions_until_end()?;
                self.add(Node::Braced(None, values))
            }
            "tl" => {
                let of = self.type_()?;
                let values = self.expressions_until_end()?;
                self.add(Node::Braced(Some(of), values))
            }
            "dt" | "pt" => {
                let object = self.expression()?;
                let member = if self.peek().is_ascii_digit() {
                    self.name_with_arguments()?
                } else {
                    self.expression()?
                };
                self.add(Node::Binary(if code == "dt" { "." } else { "->" }, object, member))
            }
            "qu" => {
                let (a, b, c) = (self.expression()?, self.expression()?, self.expression()?);
                self.add(Node::Conditional(a, b, c))
            }
            "pp" | "mm" => {
                let prefix = self.eat(b'_');
                let of = self.expression()?;
                let name = operator(code)?;
                self.add(if prefix { Node::Unary(name, of) } else { Node::Postfix(name, of) })
            }
            "ad" | "de" | "ng" | "ps" | "nt" | "co" | "sz" | "az" | "nx" => {
                let of = self.expression()?;
                self.add(Node::Unary(operator(code)?, of))
            }
            _ => {
                let name = operator(code)?;
                let (a, b) = (self.expression()?, self.expression()?);
                self.add(Node::Binary(name, a, b))
            }
        }
    }

    fn name_with_arguments(&mut self) -> Option<Id> {
        if self.peek() == b'N' {
            return self.name();
        }
        let name = self.unqualified()?;
        if self.peek() != b'I' {
            return Some(name);
        }
        let arguments = self.template_arguments()?;
        self.add(Node::Template(name, arguments))
    }
}
