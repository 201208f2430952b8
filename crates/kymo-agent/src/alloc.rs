//! An allocator that counts for tasks.
#![allow(unsafe_code)]
use crate::task::count_allocation;
use std::alloc::{GlobalAlloc, Layout};

/// Counts the allocations of tasks, and leaves the work to another allocator.
///
/// ```
/// use kymo_agent::alloc::Counting;
///
/// #[global_allocator]
/// static ALLOCATOR: Counting<std::alloc::System> = Counting(std::alloc::System);
///
/// use kymo_agent::task::{Counter, Group};
/// let group = Group::builder("boxes").count(Counter::Allocations).build()?;
/// let mut task = group.task("five")?;
/// task.scope(|| (0..5).for_each(|number| drop(std::hint::black_box(Box::new(number)))))?;
/// assert_eq!(group.read()?.get(Counter::Allocations), Some(5));
/// # Ok::<(), kymo_agent::task::Error>(())
/// ```
///
/// An allocation costs two additions more, on a cache line that only its thread writes. A
/// reallocation counts as one of the new size.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting<A>(pub A);

// SAFETY: each call is handed on as it came; counting neither allocates nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation(layout.size());
        // SAFETY: the caller's promises are the ones that are needed.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_allocation(layout.size());
        // SAFETY: as above.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { self.0.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        count_allocation(new_bytes);
        // SAFETY: as above.
        unsafe { self.0.realloc(memory, layout, new_bytes) }
    }
}
