//! From the tree to text.
//!
//! Types are written from the inside out: a pointer, reference or qualifier waits on a stack of modifiers until the
//! type below it is written; a function or array type writes the waiting ones inside its parentheses.

use super::{Id, LiteralStyle, Node, Qualifier};

const DEEPEST: usize = 400;
const LONGEST: usize = 64 << 10;
const MOST_STEPS: u32 = 200_000;

/// Something that waits to be written around or behind a type.
#[derive(Clone)]
struct Modifier {
    node: Id,
    written: bool,
    templates: Vec<Id>,
}

struct Printer<'n, 'a> {
    nodes: &'n [Node<'a>],
    out: String,
    /// The last byte that was ever written: a comma that was taken back still counts.
    last: u8,
    /// Arguments of the templates that are being written, innermost last.
    templates: Vec<Id>,
    /// Arguments of the template whose name is being written: what a conversion operator's type refers to.
    current: Option<Id>,
    /// What was in scope when a parameter was first met below a reference. The GNU demangler goes back to it when it
    /// meets the same parameter again as a substitution.
    scopes: Vec<(Id, Vec<Id>)>,
    /// The nodes that are being written, outermost first.
    path: Vec<Id>,
    pack_index: Option<usize>,
    in_lambda: u32,
    steps: u32,
}

type Done = Option<()>;

/// Writes the tree below `root`.
pub(super) fn print(nodes: &[Node<'_>], root: Id) -> Option<String> {
    let mut printer = Printer {
        nodes,
        out: String::new(),
        last: 0,
        templates: Vec::new(),
        current: None,
        scopes: Vec::new(),
        path: Vec::new(),
        pack_index: None,
        in_lambda: 0,
        steps: 0,
    };
    printer.plain(root)?;
    Some(printer.out)
}

impl<'n, 'a> Printer<'n, 'a> {
    fn push(&mut self, text: &str) -> Done {
        if let Some(&last) = text.as_bytes().last() {
            self.last = last;
        }
        self.out.push_str(text);
        (self.out.len() <= LONGEST).then_some(())
    }

    fn node(&self, id: Id) -> &'n Node<'a> {
        &self.nodes[id as usize]
    }

    /// Writes a node that nothing is waiting for.
    fn plain(&mut self, id: Id) -> Done {
        self.print(id, &mut Vec::new())
    }

    fn print(&mut self, id: Id, waiting: &mut Vec<Modifier>) -> Done {
        self.steps += 1;
        if self.path.len() >= DEEPEST || self.steps > MOST_STEPS {
            return None;
        }
        self.path.push(id);
        let done = self.print_node(id, waiting);
        self.path.pop();
        done
    }

    fn print_node(&mut self, id: Id, waiting: &mut Vec<Modifier>) -> Done {
        match self.node(id) {
            Node::Name(name) => self.push(name),
            Node::Abbreviation(name) | Node::Builtin(name, _) => self.push(name),
            Node::Numbered(before, number, after) => {
                self.push(before)?;
                self.push(number)?;
                self.push(after)
            }
            Node::Qualified(scope, name) => {
                self.plain(*scope)?;
                self.push("::")?;
                self.plain(*name)
            }
            Node::Local(function, entity) => {
                self.plain(*function)?;
                self.push("::")?;
                self.plain(*entity)
            }
            Node::Typed(name, function) => self.typed(*name, *function),
            Node::Template(name, arguments) => {
                let outer = self.current.replace(*arguments);
                self.plain(*name)?;
                let done = self.bracketed(*arguments);
                self.current = outer;
                done
            }
            Node::Arguments(list) => self.list(list),
            Node::Parameter(number) => self.parameter(*number, waiting),
            Node::FunctionParameter(None) => self.push("this"),
            Node::FunctionParameter(Some(number)) => self.push(&format!("{{parm#{}}}", number + 1)),
            Node::Constructor(name) => self.plain(*name),
            Node::Destructor(name) => {
                self.push("~")?;
                self.plain(*name)
            }
            Node::Special(words, of) => {
                self.push(words)?;
                self.plain(*of)
            }
            Node::ConstructionVtable(base, derived) => {
                self.push("construction vtable for ")?;
                self.plain(*base)?;
                self.push("-in-")?;
                self.plain(*derived)
            }
            Node::ReferenceTemporary(number, of) => {
                self.push(&format!("reference temporary #{number} for "))?;
                self.plain(*of)
            }
            Node::Tagged(name, tag) => {
                self.plain(*name)?;
                self.push(&format!("[abi:{tag}]"))
            }
            Node::Lambda(parameters, number) => {
                self.push("{lambda(")?;
                self.in_lambda += 1;
                self.list(parameters)?;
                self.in_lambda -= 1;
                self.push(&format!(")#{}}}", number + 1))
            }
            Node::Unnamed(number) => self.push(&format!("{{unnamed type#{}}}", number + 1)),
            Node::DefaultArgument(number, of) => {
                self.push(&format!("{{default arg#{}}}::", number + 1))?;
                self.plain(*of)
            }
            Node::Operator(name) => {
                self.push("operator")?;
                if name.starts_with(|c: char| c.is_ascii_lowercase()) {
                    self.push(" ")?;
                }
                self.push(name.trim_end())
            }
            Node::LiteralOperator(name) => self.push(&format!("operator\"\" {name}")),
            Node::Conversion(to) => {
                self.push("operator ")?;
                self.conversion(*to)
            }
            Node::Reference(to) | Node::RvalueReference(to) => self.reference(id, *to, waiting),
            Node::Cv(qualifier, of) => {
                // An array hands its qualifiers down to its elements; each is written once.
                let doubled = waiting
                    .iter()
                    .rev()
                    .filter(|m| !m.written)
                    .map(|m| self.node(m.node))
                    .take_while(|n| matches!(n, Node::Cv(..)))
                    .any(|n| matches!(n, Node::Cv(other, _) if other == qualifier));
                if doubled { self.print(*of, waiting) } else { self.modified(id, *of, waiting) }
            }
            Node::Pointer(of)
            | Node::Complex(of)
            | Node::Imaginary(of)
            | Node::Member(_, of)
            | Node::VendorQualified(of, _)
            | Node::Vector(_, of)
            | Node::MemberPointer(_, of) => self.modified(id, *of, waiting),
            Node::Function(result, _) => {
                if let Some(result) = result {
                    let before = waiting.len();
                    waiting.push(self.modifier(id));
                    self.print(*result, waiting)?;
                    let written = waiting.get(before).is_some_and(|m| m.written);
                    waiting.truncate(before);
                    if written {
                        return Some(());
                    }
                    self.push(" ")?;
                }
                self.function(id, waiting)
            }
            Node::Array(_, element) => self.array_type(id, *element, waiting),
            Node::Pack(pattern) => self.pack(*pattern, waiting),
            Node::Decltype(expression) => {
                self.push("decltype (")?;
                self.plain(*expression)?;
                self.push(")")
            }
            Node::Literal(of, negative, value) => self.literal(*of, *negative, value),
            _ => self.expression(id),
        }
    }

    fn bracketed(&mut self, arguments: Id) -> Done {
        if self.last == b'<' {
            self.push(" ")?;
        }
        self.push("<")?;
        self.plain(arguments)?;
        if self.last == b'>' {
            self.push(" ")?;
        }
        self.push(">")
    }

    /// The type of a conversion operator: its parameters are those of the operator itself.
    fn conversion(&mut self, to: Id) -> Done {
        let own = self.current;
        self.templates.extend(own);
        let (name, arguments) = match self.node(to) {
            Node::Template(name, arguments) => (*name, Some(*arguments)),
            _ => (to, None),
        };
        self.plain(name)?;
        if own.is_some() {
            self.templates.pop();
        }
        arguments.map_or(Some(()), |arguments| self.bracketed(arguments))
    }

    /// Items with commas between them; what writes nothing at the end leaves no comma.
    fn list(&mut self, list: &[Id]) -> Done {
        let mut commas = Vec::new();
        for (i, &item) in list.iter().enumerate() {
            if i > 0 {
                self.push(", ")?;
                commas.push(self.out.len());
            }
            self.plain(item)?;
        }
        while commas.last() == Some(&self.out.len()) {
            commas.pop();
            self.out.truncate(self.out.len() - 2);
        }
        Some(())
    }

    fn modifier(&self, node: Id) -> Modifier {
        Modifier { node, written: false, templates: self.templates.clone() }
    }

    /// Writes `of` with the modifier `id` waiting for it.
    fn modified(&mut self, id: Id, of: Id, waiting: &mut Vec<Modifier>) -> Done {
        let before = waiting.len();
        waiting.push(self.modifier(id));
        self.print(of, waiting)?;
        let written = waiting.get(before).is_some_and(|m| m.written);
        waiting.truncate(before);
        if written { Some(()) } else { self.write_modifier(id) }
    }

    fn resolve(&self, number: u32) -> Option<Id> {
        let Node::Arguments(list) = self.node(*self.templates.last()?) else { return None };
        let argument = *list.get(number as usize)?;
        match (self.node(argument), self.pack_index) {
            (Node::Arguments(pack), Some(index)) => pack.get(index).copied(),
            _ => Some(argument),
        }
    }

    fn parameter(&mut self, number: u32, waiting: &mut Vec<Modifier>) -> Done {
        if self.in_lambda > 0 {
            return self.push(&format!("auto:{}", number + 1));
        }
        let argument = self.resolve(number)?;
        // The argument was written outside of the template that it is given to.
        let template = self.templates.pop();
        let done = self.print(argument, waiting);
        self.templates.extend(template);
        done
    }

    /// A reference to a reference is one reference.
    fn reference(&mut self, id: Id, to: Id, waiting: &mut Vec<Modifier>) -> Done {
        let mut sub = to;
        let mut restore = None;
        if let (Node::Parameter(number), 0) = (self.node(to), self.in_lambda) {
            match self.scopes.iter().find(|(known, _)| *known == to) {
                None => self.scopes.push((to, self.templates.clone())),
                Some((_, scope)) => {
                    let above = self.path.split_last().map_or(&[][..], |(_, above)| above);
                    if !above.contains(&to) && !above.contains(&id) {
                        restore = Some(std::mem::replace(&mut self.templates, scope.clone()));
                    }
                }
            }
            sub = self.resolve(*number)?;
        }
        let is_lvalue = matches!(self.node(id), Node::Reference(_));
        let done = match self.node(sub) {
            Node::Reference(inner) => self.modified(sub, *inner, waiting),
            Node::RvalueReference(inner) if is_lvalue => self.modified(id, *inner, waiting),
            Node::RvalueReference(inner) => self.modified(sub, *inner, waiting),
            _ => self.modified(id, to, waiting),
        };
        if let Some(templates) = restore {
            self.templates = templates;
        }
        done
    }

    /// A name and its function: the name waits for the function type to be written around it.
    fn typed(&mut self, name: Id, function: Id) -> Done {
        let mut waiting = Vec::new();
        let mut bare = name;
        while let Node::Member(_, inner) = self.node(bare) {
            waiting.push(self.modifier(bare));
            bare = *inner;
        }
        let mut template = bare;
        if let Node::Local(_, entity) = self.node(bare) {
            // The qualifiers of a member of a local class belong to the function.
            template = *entity;
            if let Node::DefaultArgument(_, of) = self.node(template) {
                template = *of;
            }
            while let Node::Member(_, inner) = self.node(template) {
                waiting.push(self.modifier(template));
                template = *inner;
            }
        }
        waiting.push(self.modifier(bare));
        let arguments = match self.node(template) {
            Node::Template(_, arguments) => Some(*arguments),
            _ => None,
        };
        self.templates.extend(arguments);
        self.print(function, &mut waiting)?;
        if arguments.is_some() {
            self.templates.pop();
        }
        for modifier in waiting.into_iter().rev().filter(|m| !m.written) {
            self.push(" ")?;
            self.write_modifier(modifier.node)?;
        }
        Some(())
    }

    fn function(&mut self, id: Id, waiting: &mut [Modifier]) -> Done {
        let Node::Function(_, parameters) = self.node(id) else { return None };
        let mut parentheses = false;
        let mut space = false;
        for modifier in waiting.iter().rev() {
            if modifier.written {
                break;
            }
            match self.node(modifier.node) {
                Node::Pointer(_) | Node::Reference(_) | Node::RvalueReference(_) => parentheses = true,
                Node::Cv(..)
                | Node::VendorQualified(..)
                | Node::Complex(_)
                | Node::Imaginary(_)
                | Node::MemberPointer(..) => {
                    parentheses = true;
                    space = true;
                }
                _ => {}
            }
            if parentheses {
                break;
            }
        }
        if parentheses {
            space |= !matches!(self.last, b'(' | b'*');
            if space && self.last != b' ' {
                self.push(" ")?;
            }
            self.push("(")?;
        }
        self.write_waiting(waiting, false)?;
        if parentheses {
            self.push(")")?;
        }
        self.push("(")?;
        self.list(parameters)?;
        self.push(")")?;
        self.write_waiting(waiting, true)
    }

    fn array_type(&mut self, id: Id, element: Id, waiting: &mut Vec<Modifier>) -> Done {
        let before = waiting.len();
        let mut handed_down = Vec::new();
        for i in (0..before).rev() {
            if !matches!(self.node(waiting[i].node), Node::Cv(..)) {
                break;
            }
            if !waiting[i].written {
                waiting[i].written = true;
                handed_down.push(self.modifier(waiting[i].node));
            }
        }
        waiting.push(self.modifier(id));
        waiting.extend(handed_down.iter().cloned());
        self.print(element, waiting)?;
        let written = waiting.get(before).is_some_and(|m| m.written);
        waiting.truncate(before);
        if written {
            return Some(());
        }
        for modifier in handed_down.iter().rev() {
            self.write_modifier(modifier.node)?;
        }
        self.array(id, waiting)
    }

    fn array(&mut self, id: Id, waiting: &mut [Modifier]) -> Done {
        let Node::Array(dimension, _) = self.node(id) else { return None };
        let mut space = true;
        if !waiting.is_empty() {
            let first = waiting.iter().rev().find(|m| !m.written).map(|m| self.node(m.node));
            let parentheses = first.is_some_and(|node| !matches!(node, Node::Array(..)));
            space = parentheses || first.is_none();
            if parentheses {
                self.push(" (")?;
            }
            self.write_waiting(waiting, false)?;
            if parentheses {
                self.push(")")?;
            }
        }
        if space {
            self.push(" ")?;
        }
        self.push("[")?;
        if let Some(dimension) = dimension {
            self.plain(*dimension)?;
        }
        self.push("]")
    }

    /// Writes what waits, nearest first. What belongs behind the parameters is written with `behind` only.
    fn write_waiting(&mut self, waiting: &mut [Modifier], behind: bool) -> Done {
        for i in (0..waiting.len()).rev() {
            let node = self.node(waiting[i].node);
            if waiting[i].written || (!behind && matches!(node, Node::Member(..))) {
                continue;
            }
            waiting[i].written = true;
            let templates = std::mem::replace(&mut self.templates, waiting[i].templates.clone());
            let id = waiting[i].node;
            let (rest, _) = waiting.split_at_mut(i);
            let done = match node {
                Node::Function(..) => Some(self.function(id, rest)),
                Node::Array(..) => Some(self.array(id, rest)),
                Node::Local(function, entity) => Some(self.local_without_qualifiers(*function, *entity)),
                _ => {
                    self.write_modifier(id)?;
                    None
                }
            };
            self.templates = templates;
            // A function, an array or a local name has written all the rest itself.
            if let Some(done) = done {
                return done;
            }
        }
        Some(())
    }

    fn local_without_qualifiers(&mut self, function: Id, mut entity: Id) -> Done {
        self.plain(function)?;
        self.push("::")?;
        if let Node::DefaultArgument(number, of) = self.node(entity) {
            self.push(&format!("{{default arg#{}}}::", number + 1))?;
            entity = *of;
        }
        while let Node::Member(_, inner) = self.node(entity) {
            entity = *inner;
        }
        self.plain(entity)
    }

    fn write_modifier(&mut self, id: Id) -> Done {
        match self.node(id) {
            Node::Cv(qualifier, _) | Node::Member(qualifier, _) => self.push(match qualifier {
                Qualifier::Const => " const",
                Qualifier::Volatile => " volatile",
                Qualifier::Restrict => " restrict",
                Qualifier::Lvalue => " &",
                Qualifier::Rvalue => " &&",
                Qualifier::TransactionSafe => " transaction_safe",
                Qualifier::Noexcept => " noexcept",
            }),
            Node::Pointer(_) => self.push("*"),
            Node::Reference(_) => self.push("&"),
            Node::RvalueReference(_) => self.push("&&"),
            Node::Complex(_) => self.push(" _Complex"),
            Node::Imaginary(_) => self.push(" _Imaginary"),
            Node::VendorQualified(_, qualifier) => {
                self.push(" ")?;
                self.plain(*qualifier)
            }
            Node::MemberPointer(class, _) => {
                if self.last != b'(' {
                    self.push(" ")?;
                }
                self.plain(*class)?;
                self.push("::*")
            }
            Node::Vector(dimension, _) => {
                self.push(" __vector(")?;
                self.plain(*dimension)?;
                self.push(")")
            }
            _ => self.plain(id),
        }
    }

    /// How many items the pack has that the pattern mentions.
    fn pack_length(&self, id: Id, depth: usize) -> Option<usize> {
        if depth > DEEPEST {
            return None;
        }
        let of = |id: &Id| self.pack_length(*id, depth + 1);
        match self.node(id) {
            Node::Parameter(number) => {
                let Node::Arguments(list) = self.node(*self.templates.last()?) else { return None };
                match self.node(*list.get(*number as usize)?) {
                    Node::Arguments(pack) => Some(pack.len()),
                    _ => None,
                }
            }
            // A pack within is expanded there.
            Node::Pack(_) | Node::Lambda(..) => None,
            Node::Pointer(a)
            | Node::Reference(a)
            | Node::RvalueReference(a)
            | Node::Complex(a)
            | Node::Imaginary(a)
            | Node::Cv(_, a)
            | Node::Member(_, a)
            | Node::Tagged(a, _)
            | Node::Decltype(a)
            | Node::Unary(_, a)
            | Node::Postfix(_, a)
            | Node::TypeOperator(_, a)
            | Node::Conversion(a)
            | Node::Array(None, a) => of(a),
            Node::Qualified(a, b)
            | Node::Local(a, b)
            | Node::Typed(a, b)
            | Node::Template(a, b)
            | Node::VendorQualified(a, b)
            | Node::Vector(a, b)
            | Node::MemberPointer(a, b)
            | Node::Array(Some(a), b)
            | Node::Binary(_, a, b)
            | Node::NamedCast(_, a, b) => of(a).or_else(|| of(b)),
            Node::Conditional(a, b, c) => of(a).or_else(|| of(b)).or_else(|| of(c)),
            Node::Arguments(list) => list.iter().find_map(of),
            Node::Function(a, list) | Node::Braced(a, list) => {
                a.as_ref().and_then(of).or_else(|| list.iter().find_map(of))
            }
            Node::Call(a, list) | Node::CastExpression(a, list) => of(a).or_else(|| list.iter().find_map(of)),
            _ => None,
        }
    }

    fn pack(&mut self, pattern: Id, waiting: &mut Vec<Modifier>) -> Done {
        let length = if self.in_lambda > 0 { None } else { self.pack_length(pattern, 0) };
        let Some(length) = length else {
            // Packs of function parameters have no known length.
            self.operand(pattern)?;
            return self.push("...");
        };
        let before = self.pack_index;
        for i in 0..length {
            if i > 0 {
                self.push(", ")?;
            }
            self.pack_index = Some(i);
            self.print(pattern, waiting)?;
        }
        self.pack_index = before;
        Some(())
    }

    fn literal(&mut self, of: Id, negative: bool, value: &str) -> Done {
        let sign = if negative { "-" } else { "" };
        let style = match self.node(of) {
            Node::Builtin(_, style) => *style,
            _ => LiteralStyle::Cast,
        };
        match (style, value) {
            (LiteralStyle::Suffix(suffix), _) => return self.push(&format!("{sign}{value}{suffix}")),
            (LiteralStyle::Bool, "0") if !negative => return self.push("false"),
            (LiteralStyle::Bool, "1") if !negative => return self.push("true"),
            _ => {}
        }
        self.push("(")?;
        self.plain(of)?;
        self.push(")")?;
        self.push(sign)?;
        if style == LiteralStyle::Float { self.push(&format!("[{value}]")) } else { self.push(value) }
    }

    /// A part of an expression, in parentheses unless it is a mere name.
    fn operand(&mut self, id: Id) -> Done {
        let simple = matches!(
            self.node(id),
            Node::Name(_) | Node::Qualified(..) | Node::Braced(..) | Node::FunctionParameter(_)
        );
        if simple {
            return self.plain(id);
        }
        self.push("(")?;
        self.plain(id)?;
        self.push(")")
    }

    fn expression(&mut self, id: Id) -> Done {
        match self.node(id) {
            Node::Unary(operator, of) => {
                let mut of = *of;
                if *operator == "&" {
                    // The address of a member function is written without its parameters.
                    if let Node::Typed(name, function) = self.node(of) {
                        let is_function = matches!(self.node(*function), Node::Function(..));
                        if is_function && matches!(self.node(*name), Node::Qualified(..)) {
                            of = *name;
                        }
                    }
                }
                self.push(operator)?;
                self.operand(of)
            }
            Node::Postfix(operator, of) => {
                self.operand(*of)?;
                self.push(operator)
            }
            Node::Binary(operator, a, b) => {
                // A bare > would end the template arguments.
                let wrapped = *operator == ">";
                if wrapped {
                    self.push("(")?;
                }
                self.operand(*a)?;
                if *operator == "[]" {
                    self.push("[")?;
                    self.plain(*b)?;
                    self.push("]")?;
                } else {
                    self.push(operator)?;
                    self.operand(*b)?;
                }
                if wrapped { self.push(")") } else { Some(()) }
            }
            Node::Conditional(a, b, c) => {
                self.operand(*a)?;
                self.push("?")?;
                self.operand(*b)?;
                self.push(" : ")?;
                self.operand(*c)
            }
            Node::Call(callee, arguments) => {
                match self.node(*callee) {
                    Node::Typed(name, _) => self.operand(*name)?,
                    _ => self.operand(*callee)?,
                }
                self.push("(")?;
                self.list(arguments)?;
                self.push(")")
            }
            Node::CastExpression(to, values) => {
                self.push("(")?;
                self.plain(*to)?;
                self.push(")")?;
                self.push("(")?;
                self.list(values)?;
                self.push(")")
            }
            Node::NamedCast(word, to, value) => {
                self.push(word)?;
                self.push("<")?;
                self.plain(*to)?;
                self.push(">(")?;
                self.plain(*value)?;
                self.push(")")
            }
            Node::TypeOperator(word, of) => {
                self.push(word)?;
                self.push("(")?;
                self.plain(*of)?;
                self.push(")")
            }
            Node::SizeofPack(pack) => match self.pack_length(*pack, 0) {
                Some(length) => self.push(&length.to_string()),
                None => {
                    self.push("sizeof...")?;
                    self.operand(*pack)
                }
            },
            Node::Braced(of, values) => {
                if let Some(of) = of {
                    self.plain(*of)?;
                }
                self.push("{")?;
                self.list(values)?;
                self.push("}")
            }
            _ => None,
        }
    }
}
