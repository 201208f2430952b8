//! C++ names (the Itanium ABI's mangling), spelled as the GNU demangler spells them.
//!
//! Two steps, as the grammar asks for: [`parse`] turns the mangled text into a tree whose substitutions are shared
//! nodes; [`print`] writes the tree and fills in template parameters on the way, because what `T_` means depends on
//! the template that is being written. What this does not understand gives nothing; the caller has a second opinion.
//!
//! Bounds: the tree has at most a few nodes per input byte, recursion has a limit in both steps, and the output
//! stops at a fixed length (a hostile name of 200 bytes can describe a text of gigabytes).

mod parse;
mod print;

/// A node of the tree, by number.
type Id = u32;

/// What is written behind a type or a member function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Qualifier {
    Const,
    Volatile,
    Restrict,
    /// `&` behind a member function.
    Lvalue,
    /// `&&` behind a member function.
    Rvalue,
    TransactionSafe,
    Noexcept,
}

/// How a literal of a built-in type is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LiteralStyle {
    /// As a cast: `(char)65`.
    Cast,
    /// With this suffix: `1ul`.
    Suffix(&'static str),
    /// `true`, `false`.
    Bool,
    /// As a cast, the bytes in brackets: `(double)[3ff0000000000000]`.
    Float,
}

#[derive(Clone, Debug)]
enum Node<'a> {
    Name(&'a str),
    /// A standard abbreviation, not a new candidate for substitution.
    Abbreviation(&'static str),
    Builtin(&'static str, LiteralStyle),
    /// A type whose name is `_Float` or `_BitInt` with a number in it.
    Numbered(&'static str, &'a str, &'static str),
    Qualified(Id, Id),
    /// The encoding of a function, and what is local to it.
    Local(Id, Id),
    /// A name and its function type.
    Typed(Id, Id),
    Template(Id, Id),
    /// Template arguments, or a pack among them.
    Arguments(Vec<Id>),
    Parameter(u32),
    FunctionParameter(Option<u32>),
    Constructor(Id),
    Destructor(Id),
    Special(&'static str, Id),
    ConstructionVtable(Id, Id),
    ReferenceTemporary(&'a str, Id),
    Tagged(Id, &'a str),
    Lambda(Vec<Id>, u32),
    Unnamed(u32),
    DefaultArgument(u32, Id),
    Operator(&'static str),
    LiteralOperator(&'a str),
    Conversion(Id),

    Pointer(Id),
    Reference(Id),
    RvalueReference(Id),
    Complex(Id),
    Imaginary(Id),
    /// Of a type.
    Cv(Qualifier, Id),
    /// Of a member function or function type.
    Member(Qualifier, Id),
    VendorQualified(Id, Id),
    Function(Option<Id>, Vec<Id>),
    Array(Option<Id>, Id),
    Vector(Id, Id),
    MemberPointer(Id, Id),
    Pack(Id),
    Decltype(Id),

    /// Type, negative, digits.
    Literal(Id, bool, &'a str),
    Unary(&'static str, Id),
    Postfix(&'static str, Id),
    Binary(&'static str, Id, Id),
    Conditional(Id, Id, Id),
    Call(Id, Vec<Id>),
    CastExpression(Id, Vec<Id>),
    NamedCast(&'static str, Id, Id),
    TypeOperator(&'static str, Id),
    SizeofPack(Id),
    Braced(Option<Id>, Vec<Id>),
}

/// The readable form of a mangled name; with the parameters of a function or, as perf wants it, without.
pub(super) fn demangle(mangled: &str, params: bool) -> Option<String> {
    let body = mangled.strip_prefix("_Z")?;
    let (nodes, root) = parse::parse(body, params)?;
    print::print(&nodes, root)
}
