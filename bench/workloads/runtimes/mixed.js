// JSON, regular expressions, classes, closures, generators, promises, sorting and typed arrays, for some seconds.
class Shape { constructor(a) { this.a = a; } area() { return this.a * this.a; } }
class Circle extends Shape { area() { return Math.PI * super.area(); } }

function* numbers(n) { for (let i = 0; i < n; i++) yield i * i % 17; }

function json(n) {
  const rows = Array.from({ length: 800 }, (_, i) => ({ id: i, name: `row ${i * n}`, tags: ['a', 'b', i], deep: { x: { y: i } } }));
  return JSON.parse(JSON.stringify(rows)).filter(row => row.deep.x.y % 3).map(row => row.name).join().length;
}

function texts(n) {
  const text = `key${n}=value; other = "some ${n} words", last:42\n`.repeat(300);
  return text.replace(/(\w+)\s*=\s*"?([^";,]+)"?/g, (_, key, value) => value + key).split(/[;,\n]/).length;
}

function shapes(n) {
  let sum = 0;
  for (let i = 0; i < 20000; i++) sum += (i % 3 ? new Circle(i) : new Shape(n)).area();
  return sum;
}

function sorted(n) {
  const list = Array.from({ length: 4000 }, (_, i) => (i * 7919 + n) % 4001);
  return list.sort((a, b) => a - b || n).reduce((sum, item, i) => sum + item * i, 0);
}

function generated(n) {
  const twice = new Function('x', `return x * 2 + ${n % 50}`);
  let sum = 0;
  for (const number of numbers(5000)) sum += twice(number);
  return sum;
}

function arrays(n) {
  const a = new Float64Array(20000);
  for (let i = 0; i < a.length; i++) a[i] = Math.sin(i + n);
  return a.map(x => x * x).reduce((s, x) => s + x);
}

async function steps(n) {
  let sum = 0;
  for (let i = 0; i < 500; i++) sum += await Promise.resolve(i * n);
  await new Promise(done => setImmediate(done));
  return sum;
}

(async () => {
  const end = Date.now() + Number(process.argv[2]);
  const work = [json, texts, shapes, sorted, generated, arrays, steps];
  let sum = 0;
  for (let n = 0; Date.now() < end; n++) sum += await work[n % work.length](n);
  console.log('done', typeof sum);
})();
