//! An object store in memory, whose user can be stopped or killed at every step.
use bytes::Bytes;
use kymo_dataset::{DatasetError, DatasetFile, DatasetStore, StoredFile};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Objects by their keys.
pub(crate) type State = BTreeMap<String, Bytes>;

type Meanwhile = Box<dyn FnOnce(&MemoryStore) + Send>;

/// The store. A step is a request, and each removal of an object.
#[derive(Default)]
pub(crate) struct MemoryStore {
    objects: Mutex<State>,
    /// What a list gives instead of the objects.
    list: Option<State>,
    steps: AtomicU64,
    /// The step from which on nothing works.
    killed: Mutex<Option<u64>>,
    stop: Mutex<Option<(u64, Meanwhile)>>,
    recorded: Mutex<Option<Vec<State>>>,
}

impl MemoryStore {
    pub(crate) fn of(objects: State) -> MemoryStore {
        MemoryStore { objects: Mutex::new(objects), ..MemoryStore::default() }
    }

    /// Lists these objects.
    pub(crate) fn with_list(mut self, list: State) -> MemoryStore {
        self.list = Some(list);
        self
    }

    pub(crate) fn state(&self) -> State {
        self.objects.lock().expect("objects").clone()
    }

    pub(crate) fn replace_all(&self, objects: State) {
        *self.objects.lock().expect("objects") = objects;
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Whoever uses it is killed before this step.
    pub(crate) fn kill_at(&self, step: u64) {
        *self.killed.lock().expect("a step") = Some(step);
    }

    pub(crate) fn revive(&self) {
        *self.killed.lock().expect("a step") = None;
    }

    /// Does something before this step, while its user waits; whether it came to that.
    pub(crate) fn stop_at(
        &self,
        step: u64,
        meanwhile: impl FnOnce(&MemoryStore) + Send + 'static,
    ) -> Arc<AtomicBool> {
        let met = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&met);
        let meanwhile = move |store: &MemoryStore| {
            set.store(true, Ordering::Relaxed);
            meanwhile(store);
        };
        *self.stop.lock().expect("a step") = Some((step, Box::new(meanwhile)));
        met
    }

    /// Keeps every state from now on.
    pub(crate) fn record(&self) {
        *self.recorded.lock().expect("states") = Some(vec![self.state()]);
    }

    pub(crate) fn recorded(&self) -> Vec<State> {
        self.recorded.lock().expect("states").take().expect("recorded")
    }

    fn step(&self) -> Result<(), DatasetError> {
        let step = self.steps.fetch_add(1, Ordering::Relaxed);
        if self.killed.lock().expect("a step").is_some_and(|killed| killed <= step) {
            return Err(DatasetError::io("the compactor", io::Error::other("killed")));
        }
        let meanwhile = {
            let mut stop = self.stop.lock().expect("a step");
            if stop.as_ref().is_some_and(|(at, _)| *at == step) { stop.take() } else { None }
        };
        if let Some((_, meanwhile)) = meanwhile {
            meanwhile(self);
        }
        Ok(())
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> Result<T, DatasetError> {
        self.step()?;
        let mut objects = self.objects.lock().expect("objects");
        let changed = change(&mut objects);
        if let Some(states) = &mut *self.recorded.lock().expect("states") {
            states.push(objects.clone());
        }
        Ok(changed)
    }
}

impl DatasetStore for MemoryStore {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn files(&self, folder: &str) -> Result<Vec<StoredFile>, DatasetError> {
        self.step()?;
        let below = format!("{folder}/");
        let objects = self.list.clone().unwrap_or_else(|| self.state());
        let of_folder = objects.into_iter().filter(|(path, _)| path.starts_with(&below));
        Ok(of_folder.map(|(path, bytes)| StoredFile { path, bytes: bytes.len() as u64 }).collect())
    }

    fn read(&self, path: &str, range: Range<u64>) -> Result<Bytes, DatasetError> {
        self.step()?;
        let gone = || DatasetError::io(path, io::ErrorKind::NotFound.into());
        let bytes = self.objects.lock().expect("objects").get(path).cloned().ok_or_else(gone)?;
        Ok(bytes.slice(range.start as usize..range.end as usize))
    }

    fn put(&self, file: &DatasetFile) -> Result<(), DatasetError> {
        self.change(|objects| _ = objects.insert(file.path.clone(), file.bytes.clone().into()))
    }

    fn create(&self, file: &DatasetFile) -> Result<bool, DatasetError> {
        self.change(|objects| {
            let is_new = !objects.contains_key(&file.path);
            if is_new {
                objects.insert(file.path.clone(), file.bytes.clone().into());
            }
            is_new
        })
    }

    fn remove(&self, paths: &[String]) -> Result<(), DatasetError> {
        paths.iter().try_for_each(|path| self.change(|objects| _ = objects.remove(path)))
    }
}
