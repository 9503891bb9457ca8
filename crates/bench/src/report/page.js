document.addEventListener('mouseover', function (event) {
  var box = document.getElementById('value'), mark = event.target;
  var text = mark.getAttribute && mark.getAttribute('data-value');
  box.style.display = text ? 'block' : 'none';
  if (text) { box.textContent = text; }
});
