//! What the tables of a thread ask of frames, whoever knows them: addresses here, names in a file
//! that is exported.
use std::borrow::Cow;

/// What a frame of a stack is.
pub(crate) struct FrameFacts<'a> {
    /// What is shown in the place of a function's name.
    pub(crate) name: Cow<'a, str>,
    /// Frames of one function have one number; `None`: the function has this frame only.
    pub(crate) function: Option<u32>,
    /// Place of its module in the list of modules.
    pub(crate) module: Option<u32>,
    /// Address in the module.
    pub(crate) address: Option<u64>,
    /// Whose code it is.
    pub(crate) side: FrameSide,
    /// So many functions that were inlined into each other lie around it.
    pub(crate) inline_depth: u32,
    /// Source file of the function.
    pub(crate) file: Option<&'a str>,
    /// Line in it.
    pub(crate) line: Option<u32>,
}

/// Whose code a frame is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameSide {
    Program,
    Kernel,
    /// No code: the state of a thread.
    State,
}

/// Where frames are looked up by their numbers.
pub(crate) trait FrameSource {
    fn frame_facts(&self, frame: u32) -> FrameFacts<'_>;
    fn module_name(&self, module: u32) -> &str;
}
